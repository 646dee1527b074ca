"""Sphinx: the docs site. ``make docs`` builds it."""

from __future__ import annotations

import django
from django.conf import settings
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

# The reference is made of the docstrings, and some modules have models.
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django_tasklock",
    ],
    USE_TZ=True,
)
django.setup()

import django_tasklock  # noqa: E402 - its settings come first

project = "django-tasklock"
copyright = "django-tasklock contributors"
author = "django-tasklock contributors"
version = release = django_tasklock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
language = "en"
napoleon_use_rtype = False
default_role = "py:obj"

myst_heading_anchors = 4  # As GitHub names them: links to a heading work in both places.
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# With `-n` every name must lead somewhere. These are other projects', to which nothing links
# without a network, or stand for types alone.
nitpick_ignore_regex = [
    ("py:.*", r"(builtins|celery|collections|datetime|django\.|typing)\b.*"),
    (
        "py:.*",
        r"(.*\.)?(\w+Options|ArgumentNames|LockContext|SkippingDecorator|LISTED_KEY_PREFIX|Q|View|T|T_co|Function|Record|tasks\.[PR])",
    ),
    ("py:obj", r"ANY|COOLING|FREE|KEEP|LISTED|QuorumStore|lock_acquired|clock\.now|make_store"),
    ("py:obj", r"digest_of|LockInfo\.digest|Grant\.noted"),
]


def by_last_name(
    app: Sphinx, environment: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Link a docstring's `LeaseLost`, and a signature's private path, to what is documented."""
    if node.get("refdomain") != "py":
        return None
    domain = environment.get_domain("py")
    last = str(node["reftarget"]).rpartition(".")[2]
    found = [
        name
        for name, entry in domain.objects.items()
        if name.rpartition(".")[2] == last and entry.objtype in ("class", "exception", "function")
    ]
    public = min(found, key=len, default=None)
    if public is None or public == node["reftarget"]:
        return None
    return domain.resolve_xref(
        environment, node["refdoc"], app.builder, "obj", public, node, content
    )


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", by_last_name)


html_theme = "furo"
html_title = f"django-tasklock {version}"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
