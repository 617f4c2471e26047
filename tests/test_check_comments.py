"""What check_comments.py finds. Usage: test_check_comments.py"""

import tempfile
import unittest
from pathlib import Path

import check_comments

HEADER = """
#pragma once
namespace nanorun {
enum class Colour { red, green };
namespace tools {
void sharpen(int blade);
}
namespace kit = tools;
/// A struct.
template <class T>
struct Base {
  int inherited = 0;
  template <class U>
  void shared(U u) { int local = 0; }
};
class Derived final : public Base<int> {
 public:
  explicit Derived(const std::string& name) : name_(name) {}
  struct Inner { int depth; };
  static constexpr int limit = 3;
 private:
  std::string name_;
};
}  // namespace nanorun
"""


class CheckComments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("src/base/a.hpp", HEADER)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, path, text):
        self.write(path, text)
        found = list(check_comments.breaches(self.root))
        (self.root / path).unlink()
        return found

    def assert_clean(self, path, *texts):
        for text in texts:
            with self.subTest(text=text):
                self.assertEqual(self.found(path, text), [])

    def assert_breach(self, path, text, what):
        with self.subTest(text=text):
            found = self.found(path, text)
            self.assertEqual(len(found), 1, found)
            self.assertTrue(found[0].startswith(f"{path}:") and what in found[0], found)

    def test_members_that_exist(self):
        self.assert_clean("src/base/b.cpp", *(f"// See {name} there.\n" for name in (
            "Derived::name_", "Derived::limit", "Derived::Inner", "Inner::depth", "Derived::inherited", "Base::shared",
            "Base<int>::shared", "tools::sharpen", "kit::sharpen", "nanorun::tools::sharpen", "Colour::red",
            "Derived::Derived", "Derived::~Derived", "std::nonsense", "std::Unknown::member", "Kokkos::View::extent",
            "unknown::member", "T::type")))

    def test_members_that_do_not_exist(self):
        for name in ("Derived::gone", "Base::limit", "Base::local", "tools::blunt", "kit::blunt", "Colour::blue",
                     "Inner::width", "Base<int>::gone"):
            for comment in (f"// See {name}.\n", f"/// See {name}.\n", f"/* a\n {name} */\n", f"int x;  ///< {name}\n"):
                self.assert_breach("kernels/linear/b.cu", comment, f"{name.replace('<int>', '')} does not exist")

    def test_classes_that_do_not_exist(self):
        for name in ("Gone::member", "nanorun::Gone::member"):
            for path in ("src/base/b.cpp", "docs/page.md"):
                text = f"// See {name}\n" if path.endswith("cpp") else f"See `{name}`.\n"
                found = self.found(path, text)
                self.assertTrue(any("Gone::member does not exist" in breach for breach in found), found)
        self.assert_breach("src/base/b.cpp", "// Not std::string, Gone::member\n", "Gone::member does not exist")

    def test_lines_are_those_of_the_comment(self):
        text = 'const char* s = "// Derived::gone";\n/* one\n   Derived::lost */ int x; // fine\n'
        self.assertEqual(self.found("src/base/b.cpp", text), ["src/base/b.cpp:3: Derived::lost does not exist"])

    def test_members_defined_elsewhere(self):
        self.write("src/base/c.cpp", "void Derived::made_by_macro() {}\n")
        self.assert_clean("src/base/b.cpp", "// Derived::made_by_macro\n")

    def test_pages_are_read_too(self):
        self.assert_breach("docs/page.md", "Since `Derived::gone` waits\n", "Derived::gone")
        self.assert_clean("CHANGELOG.md", "Derived::gone, src/base/gone.cpp\n")

    def test_files(self):
        self.assert_clean("docs/page.md", *(f"See `{name}`.\n" for name in (
            "src/base/a.hpp", "src/base/a", "src/base", "src/base/", "a.hpp", "src/base/<name>.cpp", "/usr/src/none/x",
            "<op>_gone.cu", "*_gone.cu", "src/base/${name}.cpp")))
        for name in ("src/base/gone.hpp", "src/gone", "kernels/gone.cu", "gone.cpp", "tests/base/test_a.cpp", "docs/none.md"):
            self.assert_breach("docs/page.md", f"See `{name}`.\n", name)
            self.assert_breach("src/base/b.cpp", f"int x;  // as in {name}\n", name)

    def test_modules_are_whole_names(self):
        self.write("src/base/file_own.cpp", "")
        self.assert_clean("docs/page.md", "See `src/base/file_own`.\n")
        for name in ("src/base/file", "src/ba", "src/base/file_own.hpp"):
            self.assert_breach("docs/page.md", f"See `{name}`.\n", f"no file {name}")

    def test_patterns_match_a_file(self):
        self.write("src/base/file_own.cpp", "")
        self.assert_clean("docs/page.md", *(f"See `{name}`.\n" for name in (
            "src/*/a.hpp", "src/*/*.hpp", "src/base/file_*", "src/base/*_own", "src/*/file_own.cpp")))
        for name in ("src/*.hpp", "src/*/gone.hpp", "src/base/*.cu", "src/base/file_o*.hpp", "src/none/*"):
            self.assert_breach("docs/page.md", f"See `{name}`.\n", f"no file {name}")

    def test_paths_from_the_folder_of_the_text(self):
        self.write("tests/src/test_a.cpp", "")
        self.assert_clean("tests/README.md", "See `src/test_a.cpp` and `src/test_*.cpp`.\n")
        self.assert_breach("docs/page.md", "See `src/test_a.cpp`.\n", "no file src/test_a.cpp")

    def test_comments_of_scripts(self):
        for path in ("jobscripts/job.sh", "jobscripts/train.sbatch", "inputs/deck.toml", "tests/CMakeLists.txt",
                     "CMakeLists.txt", "cmake/FindX.cmake", ".github/workflows/ci.yml"):
            self.assert_breach(path, "x=1\n# As src/gone does.\n", ":2: no file src/gone")
            self.assert_breach(path, 'x="1"  # as "Derived::gone" does\n', "Derived::gone does not exist")
            self.assert_clean(path, 'x="# src/gone"  # as src/base/a.hpp\n', "x='# src/gone' y=src/gone#src/gone\n",
                              "n=$# src/gone\n")

    def test_targets_of_cmake(self):
        self.assert_clean("cmake/FindX.cmake", "# Defines nanorun::x.\nadd_library(nanorun::x ALIAS x)\n")
        self.assert_breach("cmake/FindX.cmake", "# Defines nanorun::y.\nadd_library(nanorun::x ALIAS x)\n", "nanorun::y")

    def test_python_comments(self):
        self.assert_breach("jobscripts/tool.py", '"""As src/gone/x.cpp counts."""\n', "src/gone/x.cpp")
        self.assert_breach("jobscripts/tool.py", "x = 1  # as src/gone\n", "src/gone")
        self.assert_clean("jobscripts/tool.py", 'x = "src/gone/x.cpp"\n', '"""In gone.cpp, src/base/a.hpp."""\n')


if __name__ == "__main__":
    unittest.main()
