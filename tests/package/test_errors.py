from __future__ import annotations

import inspect
import re

from inductor_plugin import errors


def test_the_tree_in_the_docstring_is_the_real_one():
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([ │├└─]*)(\w+Error)\b", line)
        if match is None:
            continue
        depth, name = len(match.group(1)), match.group(2)
        while path and path[-1][0] >= depth:
            path.pop()
        drawn[name] = path[-1][1] if path else "Exception"
        path.append((depth, name))
    real = {
        name: kind.__mro__[1].__name__
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }
    assert drawn == real


def test_a_wrong_option_is_a_value_error_too():
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.RegistrationError, ValueError)
