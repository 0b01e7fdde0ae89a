"""The third review's attacks, by their numbers, each with the tests that run it today.

A test fails here if an attack loses its test.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECURITY, BLAME = "tests/security", "tests/security/test_blame_attacks.py"
STATISTICS = "tests/security/test_statistics.py"
APPROVALS, SCORES = (
    "tests/pilot/test_approvals.py",
    "tests/features/evaluation/test_noised_scores.py",
)

ATTACKS: dict[str, tuple[str, ...]] = {
    "01 coordinator frames who complains": (
        f"{BLAME}::test_a_coordinator_that_sends_the_total_of_another_sum_frames_nobody",
    ),
    "01b the same in a pilot": (
        f"{BLAME}::test_a_coordinator_that_sends_the_total_of_another_sum_frames_nobody",
    ),
    "02 member frames the coordinator": (
        f"{BLAME}::test_an_upload_that_would_convict_the_coordinator_is_refused",
    ),
    "03 lies that convict nobody": (
        f"{BLAME}::test_a_salt_that_the_peer_does_not_use_names_the_pair_before_anything_is_opened",
        f"{BLAME}::test_an_upload_that_would_convict_the_coordinator_is_refused",
    ),
    "04 owner and coordinator frame a holder": (
        f"{BLAME}::test_owner_and_coordinator_cannot_make_evidence_of_a_false_share",
    ),
    "07 a part of its own ends the run": (
        f"{BLAME}::test_a_part_that_no_other_party_has_names_its_author",
    ),
    "08 keys retired by a member": (
        f"{BLAME}::test_an_upload_that_would_convict_the_coordinator_is_refused",
        "tests/pilot/test_unsolved.py::test_one_that_remembers_stops_and_names_who_hides",
    ),
    "11 member shuts another out": (
        f"{BLAME}::test_a_member_that_offers_no_shares_to_another_is_lost_itself",
        f"{BLAME}::test_a_member_that_deals_a_wrong_share_is_named_with_its_victim",
    ),
    "12 inquiry shows sums of others": (
        f"{BLAME}::test_an_inquiry_shows_uploads_only_to_members_that_read_the_disputed_part",
    ),
    "12b inquiry shows sums to a host": (
        f"{BLAME}::test_an_inquiry_shows_uploads_only_to_members_that_read_the_disputed_part",
    ),
    "13 names that fill a table": (
        f"{BLAME}::test_names_that_fill_the_table_of_contributors_name_their_author",
    ),
    "14 silent streams": (
        "tests/engines/test_line_limit.py::test_silent_streams_keep_nobody_out",
        "tests/engines/test_line_limit.py::"
        "test_more_streams_than_the_server_has_workers_keep_nobody_out",
    ),
    "16 records counted by shutting out": (
        f"{BLAME}::test_a_member_that_offers_no_shares_to_another_is_lost_itself",
        f"{SECURITY}/test_differences.py::"
        "test_pairs_of_sums_that_differ_by_one_hospital_are_listed",
        f"{SECURITY}/test_differences.py::test_a_hospital_that_leaves_a_pilot_is_in_the_result",
    ),
    "18 approval written elsewhere": (
        f"{APPROVALS}::test_a_plan_for_approval_is_not_named_as_a_path",
        f"{APPROVALS}::test_the_check_of_names_is_needed",
    ),
    "20 evaluation of one record": (
        f"{SCORES}::test_a_model_made_for_one_note_shows_its_label_only_without_noise",
        f"{SCORES}::test_the_best_guess_is_as_good_as_epsilon_allows",
    ),
    "finding 13d guessed ballots": (
        "tests/features/guard/test_guard.py::test_a_vote_is_not_removed_by_guesses",
    ),
    "finding 13e changed program": (f"{APPROVALS}::test_a_changed_package_needs_another_approval",),
    "finding 13f changed package": (
        "tests/test_release.py::test_a_wheel_that_an_index_changed_is_refused",
    ),
    "finding 13g pickles": (
        "tests/learning/test_pickles.py::test_weights_in_a_pickle_are_not_loaded",
    ),
    "finding 13h cost of a guess": (
        "tests/crypto/test_keyring.py::test_new_files_cost_more_and_older_ones_open",
        "tests/crypto/test_keyring.py::test_a_file_does_not_choose_what_its_reader_spends",
    ),
    "finding 13i model card": (
        "tests/features/export/test_model_card.py::"
        "test_the_card_of_a_folder_with_code_loads_it_without_running_it",
    ),
    "05 values from moments of moving bins": (f"{STATISTICS}::test_bins_that_move_tell_no_value",),
    "06 a patient who is unique by two fields": (
        f"{STATISTICS}::test_a_patient_who_is_unique_by_two_fields_is_hidden",
    ),
    "09 identifiers under their own names": (
        f"{STATISTICS}::test_a_named_patient_is_in_no_table",
        "tests/features/statistics/test_codebook.py"
        "::test_a_column_mapped_to_an_identifier_is_gone_under_its_own_name",
    ),
    "10 records of one patient": (
        f"{STATISTICS}::test_records_of_one_patient_do_not_count_as_many",
    ),
    "15 coordinator reads the number of sums": (
        f"{STATISTICS}::test_the_coordinator_sees_the_same_whatever_becomes_of_a_codebook",
    ),
    "17 a refusal spends the budget of others": (
        "tests/features/statistics/test_opening.py"
        "::test_one_refusal_refuses_all_and_spends_nothing",
    ),
    "19 most records of one patient, by name": (
        f"{STATISTICS}::test_the_coordinator_sees_the_same_whatever_becomes_of_a_codebook",
    ),
}
SCRIPTS = {"01b", "12b", *(f"{number:02}" for number in range(1, 21))}  # poc_NN of the review


@cache
def functions_in(file: str) -> frozenset[str]:
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return frozenset(one.name for one in body if isinstance(one, ast.FunctionDef))


def test_every_attack_of_the_review_has_a_place() -> None:
    numbered = {name.split()[0] for name in ATTACKS if not name.startswith("finding")}
    assert numbered == SCRIPTS


@pytest.mark.parametrize("attack", ATTACKS)
def test_its_test_exists(attack: str) -> None:
    for where in ATTACKS[attack]:
        file, _, test = where.partition("::")
        assert test in functions_in(file), where
