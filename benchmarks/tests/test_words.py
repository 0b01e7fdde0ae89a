"""Word counts of pages, on a made-up page and on the checkout's."""

from __future__ import annotations

from benchmarks import words

PAGE = """\
# A title

Two sentences stand here. The [second](other.md#here) has five words.

- one item
- another one, with `code`

```python
x = "this is not counted"
```

| head | other |
| --- | --- |
| one | four words in here |

<!-- table made -->
| this table | is generated |
<!-- end -->
"""


def test_a_page_is_counted() -> None:
    found = words.count("page.md", PAGE)
    assert found.sentences == [4, 5, 2, 4]
    assert found.cell == 4
    assert found.words == 2 + 9 + 6 + 7
