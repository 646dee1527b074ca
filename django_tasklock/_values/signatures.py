"""The signatures of functions that users decorate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["signature_of"]

if sys.version_info >= (3, 14):
    from annotationlib import Format

    def signature_of(
        function: Callable[..., Any], *, follow_wrapped: bool = True
    ) -> inspect.Signature:
        """As `inspect.signature`, which evaluates the annotations, where a function may use names
        that only type checkers import (PEP 649). Nobody here needs their values."""
        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.STRING
        )

else:

    def signature_of(
        function: Callable[..., Any], *, follow_wrapped: bool = True
    ) -> inspect.Signature:
        """As `inspect.signature`: annotations have their values when the function is made."""
        return inspect.signature(function, follow_wrapped=follow_wrapped)
