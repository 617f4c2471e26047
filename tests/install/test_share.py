"""What an installed nanorun has beside its program: documents, man pages, completion, module files; components and
packages.

Usage: test_share.py CMAKE BUILD_DIR [unittest arguments]. What this machine lacks is skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import installed

SOURCES = Path(__file__).resolve().parents[2]
COMPLETE = r"""
load() { source "$1"; } # in a function, as bash-completion does
load "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
complete() { :; }
compopt() { :; }
_nanorun
printf '%s\n' "${COMPREPLY[@]}"
"""


def commands_of(text):
    """The commands that `nanorun --help` lists."""
    return re.findall(r"^  ([a-z]+) ", text.partition("\nSubcommands:\n")[2].partition("\n\n")[0], re.MULTILINE)


class Documents(installed.Installed):
    def setUp(self):
        self.documents = self.prefix / "share" / "doc" / "nanorun"

    def links(self):
        """Each page with the files that it links to."""
        for page in sorted(self.documents.rglob("*.md")):
            for target in re.findall(r"\]\(([^()#\s]+)(?:#[^()\s]*)?\)", page.read_text()):
                if not re.match(r"[a-z]+:", target):
                    yield page, target

    def test_all_links_lead_to_what_is_installed(self):
        links = list(self.links())
        self.assertGreater(len(links), 150)
        self.assertEqual([(page.name, target) for page, target in links if not (page.parent / target).exists()], [])
        self.assertNotRegex((self.documents / "docs" / "tutorial.md").read_text(), r"README\.md#")

    def test_the_text_stays(self):
        """Without the links to what is not installed, pages say the same."""
        def bare(text):
            return re.sub(r"\[([^][]*)\]\([^()\s]+\)", r"\1", text)
        for page in sorted((SOURCES / "docs").glob("*.md")):
            self.assertEqual(bare((self.documents / "docs" / page.name).read_text()), bare(page.read_text()), page.name)

    def test_readme(self):
        """It shows the pages, and commands whose paths are there."""
        readme = (self.documents / "README.md").read_text()
        self.assertIn(f"# nanorun {self.version()}, installed\n", readme)
        pages = {target for page, target in self.links() if page == self.documents / "README.md"}
        self.assertLessEqual({f"docs/{page.name}" for page in (SOURCES / "docs").glob("*.md")}, pages)
        paths = [path for line in readme.splitlines() for path in re.findall(r"`(bin/[^`]+|share/[^`]+)`", line)]
        paths += re.findall(r"PREFIX/([^\s`]+)", readme)
        self.assertGreater(len(paths), 8)
        for path in paths:
            self.assertTrue((self.prefix / path).exists(), path)

    def test_begin(self):
        """Its commands make shards of one source to train and to validate on, which the training takes."""
        readme = (self.documents / "README.md").read_text().replace("\\\n", " ")
        commands = re.findall(r"^    (?:mpirun -n \d+ )?nanorun ((?:shard|train) .*)$", readme, re.MULTILINE)
        with tempfile.TemporaryDirectory(prefix="nanorun-begin-") as folder:
            for command in commands:
                words = command.replace("PREFIX", str(self.prefix)).split()
                dry = ["--dry-run", "--ranks", "2"] if words[0] == "train" else []
                subprocess.run([self.prefix / "bin" / "nanorun", *words, *dry], cwd=folder, check=True,
                               stdout=subprocess.DEVNULL)
            named = dict(word.split("=") for word in words if word.startswith("data."))
            sources = {re.search(rb"synthetic tokens, seed \d+, [0-9.]+", (Path(folder) / shard).read_bytes())[0]
                       for shard in named.values()}
        self.assertEqual((words[0], set(named), len(set(named.values())), len(sources)),
                         ("train", {"data.train", "data.validation"}, 2, 1))

    def version(self):
        return self.run_program("--version").split()[1]


class Manual(installed.Installed):
    def test_a_page_for_each_command(self):
        pages = self.prefix / "share" / "man" / "man1"
        commands = commands_of(self.run_program("--help"))
        self.assertIn("train", commands)
        self.assertEqual(sorted(page.name for page in pages.iterdir()),
                         sorted(["nanorun.1", *(f"nanorun-{command}.1" for command in commands)]))

    def test_pages_say_what_the_help_says(self):
        if shutil.which("help2man") is None:
            self.skipTest("no help2man")
        with tempfile.TemporaryDirectory(prefix="nanorun-man-") as folder:
            subprocess.run([SOURCES / "install" / "make_man.sh", self.prefix / "bin" / "nanorun", folder], check=True)
            for page in sorted(Path(folder).iterdir()):
                # The first line names the version of help2man.
                made, kept = ((place / page.name).read_text().split("\n", 1)[1]
                              for place in (Path(folder), SOURCES / "install" / "man"))
                self.assertEqual(kept, made, f"{page.name}: make the pages anew, with install/make_man.sh PROGRAM")

    def test_man_shows_them(self):
        if shutil.which("man") is None:
            self.skipTest("no man")
        page = self.prefix / "share" / "man" / "man1" / "nanorun-train.1"
        shown = subprocess.run(["man", "--warnings", "--local-file", page], capture_output=True, text=True,
                               env=os.environ | {"MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""})
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertRegex(shown.stdout, r"(?s)NAME.*nanorun-train - train as a deck says.*SYNOPSIS.*--dry-run.*SEE ALSO")


class Completion(installed.Installed):
    def complete(self, line, folder=None):
        """What completes the last word of the line."""
        script = self.prefix / "share" / "bash-completion" / "completions" / "nanorun"
        done = subprocess.run(["bash", "-c", COMPLETE, "bash", script, line], cwd=folder or self.elsewhere,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []

    def test_commands(self):
        commands = commands_of(self.run_program("--help"))
        self.assertLessEqual(set(commands), set(self.complete("nanorun ")))
        self.assertEqual(self.complete("nanorun tr"), ["train"])
        self.assertEqual(self.complete("/opt/bin/nanorun ve"), ["verify"])

    def test_options_are_those_of_the_help(self):
        for command in ["", *commands_of(self.run_program("--help"))]:
            words = [command] if command else []
            listed = self.run_program(*words, "--help").partition("\nOptions:\n")[2].partition("\n\n")[0]
            options = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", listed, re.MULTILINE)
            self.assertEqual(sorted(self.complete(" ".join(["nanorun", *words, "--"]))), sorted(options), command)
            # An option that takes a value is followed by the value's type.
            for option, takes in re.findall(r"^  (--[a-z0-9-]+)( [A-Z]+)?", listed, re.MULTILINE):
                if takes:
                    self.assertEqual(self.complete(" ".join(["nanorun", *words, option, "--"])), [], option)

    def test_keys_are_those_of_the_reference(self):
        keys, section = [], ""
        rows = r"^(?:## \[+([a-z_]+)\]+|\| `([a-z0-9_]+)` .*)$"
        for header, key in re.findall(rows, self.run_program("keys"), re.MULTILINE):
            section = header or section
            if key:
                keys.append(f"{section}.0.{key}=" if section in ("stage", "group", "average") else f"{section}.{key}=")
        self.assertGreater(len(keys), 100)
        self.assertEqual(self.complete("nanorun train deck.toml "), keys)
        self.assertEqual(self.complete("nanorun train --ranks 8 deck.toml run.name=x train.st"), ["train.steps="])
        self.assertEqual(self.complete("nanorun train deck.toml stage.12.len"), ["stage.12.length="])

    def test_keys_to_search_for(self):
        """With their section and without; `nanorun keys` finds each."""
        for word, expected in (("mu", "muon_lr"), ("rate muon_l", "muon_lr"), ("optimizer.mu", "optimizer.muon_lr"),
                               ("stage.N.sh", "stage.N.share"), ("", "train.steps")):
            found = self.complete(f"nanorun keys {word}")
            self.assertIn(expected, found, word)
            self.assertEqual(len(found), len(set(found)), word)
            self.assertTrue(all(name.startswith(word.split()[-1] if word else "") for name in found), found)
            self.assertIn(expected.rpartition(".")[2], self.run_program("keys", expected))
        self.assertEqual(self.complete("nanorun keys no_key"), [])

    def test_values(self):
        self.assertEqual(self.complete("nanorun train deck.toml comm.gradients="), ["fp32", "bf16", "e5m2"])
        self.assertEqual(self.complete("nanorun train deck.toml comm.gradients=b"), ["bf16"])
        self.assertEqual(self.complete("nanorun train deck.toml run.reproducible="), ["true", "false"])
        self.assertEqual(self.complete("nanorun train deck.toml train.steps="), [])

    def test_decks_and_files(self):
        with tempfile.TemporaryDirectory(prefix="nanorun-files-") as folder:
            for name in ("my deck.toml", "mine.txt", "my.h5"):
                (Path(folder) / name).touch()
            self.assertEqual(self.complete("nanorun train my", folder), ["my deck.toml"])
            self.assertEqual(self.complete("nanorun train --dry-run my", folder), ["my deck.toml"])
            self.assertEqual(self.complete("nanorun verify m", folder), ["my.h5"])
            self.assertEqual(sorted(self.complete("nanorun shard out m", folder)),
                             ["mine.txt", "my deck.toml", "my.h5"])
            self.assertEqual(self.complete("nanorun eval my.h5 --data m", folder), ["my.h5"])
            decks = str(self.prefix / "share" / "nanorun" / "inputs")
            self.assertEqual(sorted(self.complete("nanorun train record2", folder)),
                             [f"{decks}/record{name}.toml" for name in ("20", "21", "21_16gb", "21_24gb")])

    def test_bash_loads_it(self):
        """The function is bound to the command, and bash finds no fault in the script."""
        script = self.prefix / "share" / "bash-completion" / "completions" / "nanorun"
        said = subprocess.run(["bash", "--norc", "-euc", 'source "$1"; complete -p nanorun', "bash", script],
                              capture_output=True, text=True)
        self.assertEqual((said.stdout, said.stderr), ("complete -F _nanorun nanorun\n", ""))


class Modules(installed.Installed):
    INIT = {"Environment Modules": ["/usr/share/modules/init/bash", "/usr/share/Modules/init/bash"],
            "Lmod": ["/usr/share/lmod/lmod/init/bash"]}
    SHOW = r"""
source "$1"
module use "$2"
module load nanorun || exit
command -v nanorun || exit
echo "$NANORUN_JOBSCRIPTS"
module unload nanorun
[[ $PATH != *"$NANORUN_TEST_PREFIX"* ]] || echo "$PATH"
echo "${NANORUN_JOBSCRIPTS-unset}"
"""

    def load(self, tool, folder, code=0):
        init = os.environ.get(f"NANORUN_TEST_{tool.split()[-1].upper()}_INIT")  # where it is not installed as usual
        found = next((file for file in [init, *self.INIT[tool]] if file and Path(file).is_file()), None)
        if found is None:
            self.skipTest(f"no {tool}")
        others = ("MODULE", "LMOD", "LOADED", "BASH_ENV", "__LMOD", "MANPATH", "NANORUN_J")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        done = subprocess.run(["bash", "--norc", "-c", self.SHOW, "bash", found, folder], capture_output=True,
                              text=True, cwd=self.elsewhere, env=environment | {"NANORUN_TEST_PREFIX": str(self.prefix)})
        self.assertEqual(done.returncode == 0, code == 0, done.stderr)
        return done.stdout + done.stderr

    def check(self, tool):
        modules = self.prefix / "share" / "modulefiles"
        said = self.load(tool, modules)
        self.assertEqual(said.split("\n"), [str(self.prefix / "bin" / "nanorun"),
                                            str(self.prefix / "share" / "nanorun" / "jobscripts"), "unset", ""])
        with tempfile.TemporaryDirectory(prefix="nanorun-modules-") as folder:
            shutil.copytree(modules, Path(folder) / "modules")
            self.assertIn("does not lie in the prefix of nanorun: write the prefix into it",
                          " ".join(self.load(tool, Path(folder) / "modules", code=1).split()))

    def test_environment_modules(self):
        self.check("Environment Modules")

    def test_lmod(self):
        self.check("Lmod")

    def test_both_set_the_same(self):
        """Without either tool: the files name the same variables."""
        folder = self.prefix / "share" / "modulefiles" / "nanorun"
        lua, tcl = (next(folder.glob(pattern)).read_text() for pattern in ("*.lua", "*[0-9]"))
        self.assertEqual(re.findall(r'^ *(?:prepend_path|setenv)\("([A-Z_]+)"', lua, re.MULTILINE),
                         re.findall(r"^ *(?:prepend-path|setenv) ([A-Z_]+)", tcl, re.MULTILINE))


class Components(installed.Installed):
    PLACES = {"program": "bin/nanorun", "scripts": "share/nanorun/jobscripts/train.sbatch",
              "docs": "share/doc/nanorun/README.md"}

    def test_each_by_itself(self):
        for component in self.PLACES:
            with tempfile.TemporaryDirectory(prefix="nanorun-component-") as folder:
                self.install(folder, "--component", component)
                there = [name for name, place in self.PLACES.items() if (Path(folder) / place).is_file()]
                self.assertEqual(there, [component])

    def test_packages(self):
        """CPack writes an archive for each component."""
        cpack = shutil.which("cpack", path=f"{Path(self.CMAKE).parent}{os.pathsep}{os.environ['PATH']}")
        with tempfile.TemporaryDirectory(prefix="nanorun-package-") as folder:
            subprocess.run([cpack, "--config", self.BUILD / "CPackConfig.cmake", "-B", folder, "-D",
                            "CPACK_CMAKE_GENERATOR=Ninja"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
            archives = {component: next(Path(folder).glob(f"*-{component}.tar.gz")) for component in self.PLACES}
            for component, archive in archives.items():
                with tarfile.open(archive) as file:
                    names = file.getnames()
                self.assertIn(self.PLACES[component], names)


if __name__ == "__main__":
    installed.main(sys.argv)
