"""Look up what the package depends on in PyPI's list of known vulnerabilities, with pip-audit.

Exit status 1: there is one. Where the list cannot be reached it says so, and does not fail: whether
a network is there is not a property of this package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "django-tasklock"


def needed(package: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """The packages that are installed with this one."""
    found: set[str] = set()
    todo = [(package, extras)]
    while todo:
        name, wanted = todo.pop()
        try:
            texts = requires(name) or []
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                continue
            other = canonicalize_name(requirement.name)
            if other not in found:
                found.add(other)
                todo.append((other, frozenset(requirement.extras)))
    return found


def main() -> int:
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--local", "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        listed = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"not audited, pip-audit has failed: {done.stderr.strip().splitlines()[-1:]}")
        return 0
    ours = needed(PACKAGE)
    about = [package for package in listed if canonicalize_name(package["name"]) in ours]
    audited = [package for package in about if "skip_reason" not in package]
    for package in audited:
        for found in package["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {found['id']}, fixed in {fixed}")
    print(f"{len(audited)} of {len(about)} packages audited")
    if not audited:
        print("the list of known vulnerabilities was not reached: nothing was audited")
    return 1 if any(package["vulns"] for package in audited) else 0


if __name__ == "__main__":
    sys.exit(main())
