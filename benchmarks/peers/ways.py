"""How each system runs the job: the commands that its own documentation gives."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers import certificates, hospitals
from benchmarks.peers.inside.job import FINAL
from benchmarks.peers.mishaps import start_flare
from benchmarks.peers.stage import PORT, Place
from secure_fl.settings import Protection
from tests.support.pilot_folders import HUB

HOST = "localhost"
HERE = f"127.0.0.1:{PORT}"
ROOT = Path(__file__).parents[2]
OWN = {"PYTHONPATH": str(ROOT)}
SITE = "PEERS_SITE"  # the environment variable that says whose process it is
PROGRAM = "from secure_fl.cli.main import main; main()"
FLARE_SERVER = r"server_train|runner_process"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0"}
WITHOUT_MASKS = "ours-he"  # a control: what one learns of a site where half of it is off
NO_SERVER = "(?!)"  # a simulation has none


@dataclass(frozen=True, slots=True)
class Way:
    """One system in one mode."""

    system: str  # whose environment it needs
    mode: str  # as the table says it
    protected: bool  # whether the server cannot read a site's update
    run: Callable[[Place], None]
    server: str  # what is in the command lines of the server's processes
    files: tuple[str, ...]  # that a user writes, under `inside`
    again: Callable[[Place, str], None] = Place.again  # starts what was killed


def flower(component: str) -> Callable[[Place], None]:
    """Flower's deployment engine: a SuperLink, a SuperNode for each site, and the app."""

    def run(place: Place) -> None:
        home, app = place.out / "home", flower_app(place)
        project = app / "pyproject.toml"
        text = project.read_text().replace("app.plain", f"app.{component}")
        if place.reads:
            text = text.replace(f"app.{component}:server", f"app.lying:{component}")
        project.write_text(text)
        ca, certificate, key = certificates.write(place.out)
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "job"\n[superlink.job]\naddress = "{HERE}"\n'
            f'root-certificates = "{ca}"\n'
        )
        settings = {"FLWR_HOME": str(home), **QUIET}
        tls = ("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key)
        place.start("server", ("flower-superlink", "--port", str(PORT), *map(str, tls)), settings)
        place.until_open(PORT)
        for number, site in enumerate(place.sites):
            to = ("--root-certificates", str(ca), "--superlink", HERE)
            own = ("--port", str(9200 + number), "--node-config", f"partition-id={number}")
            place.start(site, ("flower-supernode", *to, *own), settings)
        place.do("submit", ("flwr", "run", str(app), "job"), settings)
        place.until("the final model", (place.out / FINAL).exists)

    return run


def flower_app(place: Place) -> Path:
    """The app's folder: what a user writes, and the job beside it."""
    app = place.out / "app"
    shutil.copytree(place.inside / "flower", app)
    shutil.copy(place.inside / "job.py", app / "app")
    return app


def simulated_by_flower(place: Place) -> None:
    """Flower's simulation engine: clients as tasks of Ray's workers."""
    script, app = place.inside / "flower_simulation.py", flower_app(place)
    settings = {"FLWR_HOME": str(place.out / "home"), "PYTHONPATH": str(app), **QUIET}
    place.do("run", ("python", str(script)), settings)


def flare(mode: str) -> Callable[[Place], None]:
    """NVFLARE's proof-of-concept deployment: mutual TLS, a server, a process for each site."""

    def run(place: Place) -> None:
        space = {"NVFLARE_POC_WORKSPACE": str(place.out / "poc"), "HOME": str(place.out)}
        script = place.inside / "nvflare_run.py"
        place.do("run", ("python", str(script), mode), space)
        if mode == "he" and place.reads:
            place.do("open", ("python", str(place.inside / "nvflare_open.py"), str(place.out)))

    return run


def fedbiomed(place: Place, mode: str) -> None:
    """A researcher's gRPC server over TLS, and a node for each site, which has its own dataset."""
    at = {"FBM_SERVER_HOST": HOST, "FBM_SERVER_PORT": str(PORT)}
    at |= {"FBM_RESEARCHER_IP": HOST, "FBM_RESEARCHER_PORT": str(PORT), "HOME": str(place.out)}
    lead = place.out / "researcher"
    create = ("fedbiomed", "component", "create", "-p")
    place.do("create", (*create, str(lead), "-c", "RESEARCHER"), at)
    for site in place.sites:
        home, about = place.out / "nodes" / site, place.out / f"{site}.json"
        place.do("create", (*create, str(home), "-c", "NODE", "-n", site), at)
        records = {"path": str(place.job / "sites" / f"{site}.npz"), "tags": "#records"}
        records |= {"name": site, "data_type": "custom", "description": "the records of the job"}
        about.write_text(json.dumps(records))
        node = ("fedbiomed", "node", "-p", str(home))
        place.do("create", (*node, "dataset", "add", "-fl", str(about)), at)
        place.start(site, (*node, "start"), {**at, SITE: site})
    own = {**at, "FBM_RESEARCHER_COMPONENT_ROOT": str(lead)}
    place.start("server", ("python", str(place.inside / "fedbiomed_run.py"), mode), own)
    place.until("the end of the run", lambda: ended(place))
    if not (place.out / FINAL).exists():
        raise RuntimeError((place.out / "server.log").read_text(errors="replace")[-600:])


def simulated_by_substra(place: Place) -> None:
    """SubstraFL's local mode. It reads its own states as pickles, which torch must be told."""
    script, settings = (
        place.inside / "substra" / "run.py",
        {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    )
    place.do("run", ("python", str(script)), settings)


def ours(place: Place, mode: Protection = "he+secagg") -> None:
    """A pilot: a process for each hospital, with keys, kit and rules of its own, and the hub."""
    trial = hospitals.make(place.job, place.out, mode)
    common = ("--kit", "kit", "--passphrase-file", "passphrase")
    program = ("-m", "benchmarks.peers.ours_lying") if place.mishap else ("-c", PROGRAM)
    lead = ("coordinate", "plan.toml", *common, "--out", "run")
    for log, name in (("server", HUB), *((name, name) for name in trial.names)):
        what = lead if name == HUB else ("join", "site.toml", *common)
        command = (sys.executable, *program, *what)
        place.start(log, command, OWN | {SITE: name}, trial.of(name))
    place.until("the end of the run", lambda: ended(place))
    if place.running["server"].returncode:
        raise RuntimeError((place.out / "server.log").read_text()[-600:])
    hospitals.collect(place.job, place.out, trial)


def ended(place: Place) -> bool:
    """Whether the server's process is done: not killed, to be started again."""
    return place.running["server"].poll() not in (None, -signal.SIGKILL)


def simulated_here(place: Place) -> None:
    """A `Federation` in one process, nothing sealed."""
    place.do("run", (sys.executable, "-m", "benchmarks.peers.ours_simulation"), OWN)


def simulated_by_pfl(place: Place) -> None:
    """Pfl's simulated backend, in one process."""
    place.do("run", ("python", str(place.inside / "pfl_simulation.py")))


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "ours": Way(
            "",
            "ours, sealed and masked, TLS",
            True,
            ours,
            "coordinate",
            (),  # a plan, and rules at each site: TOML
        ),
        "ours-masks": Way(  # as Fed-BioMed's and Flower's protected modes are: masks alone
            "",
            "ours, masked alone, TLS",
            True,
            partial(ours, mode="secagg"),
            "coordinate",
            (),
        ),
        WITHOUT_MASKS: Way(
            "",
            "ours without its masks, TLS",
            True,
            partial(ours, mode="he"),
            "coordinate",
            (),
        ),
        "ours-simulated": Way(
            "",
            "ours, simulated, in the clear",
            False,
            simulated_here,
            NO_SERVER,
            ("../ours_simulation.py",),
        ),
        "flower-simulated": Way(
            "flwr",
            "Flower, simulated (Ray)",
            False,
            simulated_by_flower,
            NO_SERVER,
            ("flower/pyproject.toml", "flower/app/plain.py", "flower_simulation.py"),
        ),
        "pfl-simulated": Way(
            "pfl", "pfl, simulated", False, simulated_by_pfl, NO_SERVER, ("pfl_simulation.py",)
        ),
        "substra-simulated": Way(
            "substra",
            "SubstraFL, local mode",
            False,
            simulated_by_substra,
            NO_SERVER,
            ("substra/run.py", "substra/opener.py", "substra/records.md"),
        ),
        "nvflare": Way(
            "nvflare",
            "NVFLARE, TLS",
            False,
            flare("plain"),
            FLARE_SERVER,
            ("nvflare_client.py", "nvflare_model.py", "nvflare_run.py"),
            start_flare,
        ),
        "nvflare-he": Way(
            "nvflare",
            "NVFLARE, HE, TLS",
            True,
            flare("he"),
            FLARE_SERVER,
            ("nvflare_client.py", "nvflare_model.py", "nvflare_run.py"),
            start_flare,
        ),
        "fedbiomed": Way(
            "fedbiomed",
            "Fed-BioMed, TLS",
            False,
            partial(fedbiomed, mode="plain"),
            "fedbiomed_run",
            ("fedbiomed_plan.py", "fedbiomed_run.py"),
        ),
        "fedbiomed-secagg": Way(
            "fedbiomed",
            "Fed-BioMed, secure aggregation, TLS",
            True,
            partial(fedbiomed, mode="secagg"),
            "fedbiomed_run",
            ("fedbiomed_plan.py", "fedbiomed_run.py"),
        ),
        "flower": Way(
            "flwr",
            "Flower, TLS",
            False,
            flower("plain"),
            "superlink|serverapp|superexec.*serverapp",
            ("flower/pyproject.toml", "flower/app/plain.py"),
        ),
        "flower-secagg": Way(
            "flwr",
            "Flower, SecAgg+, TLS",
            True,
            flower("secagg"),
            "superlink|serverapp",
            ("flower/pyproject.toml", "flower/app/secagg.py"),
        ),
    }
)
