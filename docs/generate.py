"""Write the generated parts of the documentation: the table of options in README.md."""

from __future__ import annotations

from pathlib import Path

from inductor_plugin.config import options_table

BEGIN, END = "<!-- options: begin (make docs) -->\n", "<!-- options: end -->\n"


def with_options(text: str) -> str:
    """Return a text with the table of options between its markers renewed."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the text lacks the lines {BEGIN!r} and {END!r}; put them back")
    return f"{before}{begin}\n{options_table()}\n{end}{after}"


def main() -> None:
    """Renew README.md."""
    readme = Path(__file__).resolve().parents[1] / "README.md"
    readme.write_text(with_options(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
