"""Every link of the documentation leads somewhere, figures name commits that are there, and all places agree on the
version. Standard library only."""

import re
import subprocess
import unittest
from pathlib import Path

from pages import LINKING, PAGES, ROOT, anchors, check_link, links, recipe


def packaged():
    """Commits of Spack's versions, newest first."""
    return dict(re.findall(r'^    version\("([\d.]+)", commit="([0-9a-f]{40})"\)$', recipe(), re.MULTILINE))


class Links(unittest.TestCase):
    def test_links(self):
        count = 0
        for page in LINKING:
            for target in links(page.read_text()):
                count += 1
                with self.subTest(page=page.name, target=target):
                    check_link(page, target)
        self.assertGreaterEqual(count, 40)

    def test_every_page_is_in_the_readme(self):
        targets = set(links((ROOT / "README.md").read_text()))
        for page in PAGES[1:]:
            self.assertIn(str(page.relative_to(ROOT)), targets)

    def test_anchors(self):
        text = "# A `deck`, and more\n\n## Twice\n\n```\n# no heading\n```\n## Twice\n## [Link](x.md) & Co.\n"
        self.assertEqual(anchors(text), ["a-deck-and-more", "twice", "twice-1", "link--co"])

    def test_wrong_links_are_found(self):
        page = ROOT / "docs" / "running.md"
        for target in ("none.md", "../../README.md", "#none", "keys.md#none", "../LICENSE#a", "http://a.b/c", "/etc"):
            with self.subTest(target=target), self.assertRaises(AssertionError):
                check_link(page, target)
        for target in ("keys.md", "../README.md#quickstart", "#exit-codes", "https://a.b/c"):
            check_link(page, target)


class Commits(unittest.TestCase):
    def git(self, *arguments):
        """What git says of this repository; skips the test where there is none, or no git."""
        try:
            return subprocess.run(["git", "-c", "safe.directory=*", "-C", ROOT, *arguments], capture_output=True,
                                  text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no history")

    def history(self):
        """All commits up to this one."""
        top, is_shallow = self.git("rev-parse", "--show-toplevel", "--is-shallow-repository").split("\n")[:2]
        if Path(top).resolve() != ROOT or is_shallow == "true":
            self.skipTest("no history, or only a part of it")
        return set(self.git("rev-list", "HEAD").split())

    def test_spack_names_versions_by_commit(self):
        """A clone may lack tags, so that only main, a branch, goes without a commit."""
        self.assertEqual(re.findall(r'^ *version\("([^"]+)"', recipe(), re.MULTILINE), ["main", *packaged()])

    def test_spack_has_the_commits_of_the_releases(self):
        known = self.history()
        for version, commit in packaged().items():
            self.assertIn(commit, known)
            self.assertIn(f"\nproject(nanorun VERSION {version} ", self.git("show", f"{commit}:CMakeLists.txt"))

    def test_figures_are_of_the_history(self):
        """Commits that figures name, words of seven hexadecimal digits, are there."""
        known = {commit[:7] for commit in self.history()}
        sources = (*PAGES, *(ROOT / "inputs").rglob("*.toml"), *(ROOT / "docs" / "data").glob("*.csv"))
        named = {(page.name, word) for page in sources
                 for word in re.findall(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7}\b", page.read_text())}
        self.assertGreaterEqual(len(named), 40)
        self.assertEqual([(page, word) for page, word in sorted(named) if word not in known], [])


class Versions(unittest.TestCase):
    def test_one_version(self):
        """CMakeLists.txt, the newest entry of CHANGELOG.md and CITATION.cff. Spack has the releases of CHANGELOG.md, the
        newest as soon as its commit is known."""
        built = re.search(r"^project\(nanorun VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        released = re.findall(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        cited = dict(re.findall(r"^([a-z-]+): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
        self.assertEqual(released[0], (built, cited["date-released"]))
        self.assertEqual(built, cited["version"])
        versions = [version for version, _ in released]
        self.assertIn(list(packaged()), (versions, versions[1:]))

    def test_citation_has_the_keys_of_its_format(self):
        """Those of CFF 1.2.0, which allows no others."""
        required = {"cff-version", "message", "title", "authors"}
        allowed = required | {
            "abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license",
            "license-url", "preferred-citation", "references", "repository", "repository-artifact", "repository-code",
            "type", "url", "version"}
        text = (ROOT / "CITATION.cff").read_text()
        keys = re.findall(r"^([^\s#:]+):", text, re.MULTILINE)
        self.assertEqual(len(keys), len(set(keys)))
        self.assertLessEqual(required, set(keys))
        self.assertLessEqual(set(keys), allowed)
        self.assertRegex(text, r"(?m)^cff-version: 1\.2\.0$")
        self.assertRegex(text, r"(?m)^date-released: \d{4}-\d\d-\d\d$")
        self.assertRegex(text, r"(?m)^license: BSD-3-Clause$")


if __name__ == "__main__":
    unittest.main()
