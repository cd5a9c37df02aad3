"""What the documentation site has besides docs/: files of the root, pictures of results, and the API by docstrings.

Links are written for readers of the repository; here they lead to where the same file lies in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# where files of the root lie in the site, besides those that keep their place
PLACES = {"README.md": "index.md"}
BROUGHT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/*.svg", "examples/README.md", "examples/*.py")
# links from files of the root into docs/, and from docs/ to the root
LINK = re.compile(r"\]\((?:docs/|\.\./)")
FOLDER = re.compile(r"\]\(examples\)")
# a converted model, without what front ends ask of it
WRAPPER = """actnn.model.wrapper.Wrapper
    options:
      members: [set_samples, report, restore, session_state, load_session_state]
"""
API = {
    "Models": ["actnn.torch.convert.QModule", WRAPPER, "actnn.torch.door.registry.register"],
    "Settings": ["actnn.settings.Config", "actnn.settings.set_optimization_level", "actnn.settings.QScheme"],
    "Reports": ["actnn.session.report.Report", "actnn.session.report.Row", "actnn.torch.verify.verify"],
    "Compiled training": ["actnn.torch.compiled.compile"],
    "Checkpoints": ["actnn.torch.checkpoint.save", "actnn.torch.checkpoint.load", "actnn.paddle.checkpoint"],
    "Trainers": [
        "actnn.integrations.huggingface",
        "actnn.integrations.lightning",
        "actnn.integrations.accelerate",
        "actnn.integrations.timm",
    ],
    "Data": ["actnn.torch.data.DataLoader"],
    "PaddlePaddle": ["actnn.paddle.convert.QModule", "actnn.paddle.verify.verify", "actnn.paddle.data.DataLoader"],
    "Errors": ["actnn.errors"],
}


def on_files(files: Files, config: Any) -> Files:
    """Add what lies outside of docs/."""
    for pattern in BROUGHT:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, PLACES.get(name, name), abs_src_path=str(path)))
    files.append(File.generated(config, "api.md", content=reference()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links lead to places in the site."""
    return LINK.sub("](", FOLDER.sub("](examples/README.md)", markdown))


def reference() -> str:
    """Return the page of the API."""
    lines = [
        "# API",
        "",
        "By docstrings; `import actnn` has the names for PyTorch, `import actnn.paddle as actnn` Paddle's.",
        "",
    ]
    for heading, names in API.items():
        lines += [f"## {heading}", "", *(f"::: {name}" for name in names), ""]
    return "\n".join(lines)
