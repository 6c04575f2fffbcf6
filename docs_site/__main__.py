"""Build the site in build/site: `make docs`. Warnings, pages without a place and links to nowhere are errors."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from docs_site import links, pages, reference

BUILD: Final = pages.ROOT / "build"


def build(to: Path) -> Path:
    """Build the site below a directory and return where it is, or raise everything that is wrong with it."""
    shutil.rmtree(to, ignore_errors=True)
    pages.copy_pages(to / "pages")
    made = reference.write(to / "pages" / pages.REFERENCE)
    pages.check_navigation([*pages.pages(), *made])
    (to / "zensical.toml").write_text(pages.config())
    _zensical(to)
    broken = list(links.problems(to / "site"))
    if broken:
        raise pages.BrokenSite("\n".join(broken))
    return to / "site"


def _zensical(directory: Path) -> None:
    command = Path(sys.executable).with_name("zensical")
    ran = subprocess.run(
        [command, "build", "--strict"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode or "warning" in ran.stdout.lower():
        raise pages.BrokenSite(ran.stdout)


def main() -> None:
    """Build the site, or say what is wrong with it."""
    try:
        site = build(BUILD)
    except pages.BrokenSite as error:
        sys.exit(str(error))
    print(f"{site.relative_to(pages.ROOT)}/index.html")


if __name__ == "__main__":
    main()
