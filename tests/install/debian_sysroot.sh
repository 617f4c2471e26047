#!/usr/bin/env bash
# Fills a folder with Debian's packages for another processor, as a sysroot to build against; this machine's packages
# stay as they are. A folder that exists is complete and is left alone.
# Usage: debian_sysroot.sh ARCHITECTURE FOLDER PACKAGE... Debian's ARCHITECTURE, such as arm64.
set -euo pipefail
architecture=$1 folder=$(realpath -m -- "$2")
shift 2
[[ ! -d $folder ]] || exit 0
partial=$folder.partial
rm -rf "$partial"
mkdir -p "$partial"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{lists/partial,cache/archives/partial}
touch "$apt/status"
# With a status of its own, apt resolves the dependencies as on a machine that has nothing.
options=(
  -o "APT::Architecture=$architecture" -o "APT::Architectures::=$architecture" -o "Dir::State::status=$apt/status"
  -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Install-Recommends=false
  -o APT::Sandbox::User=root -o Acquire::Languages=none -q
)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --yes --download-only "$@"
for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$partial"; done
# Files of CMake that name libraries by their place on such a machine; others compare their own place with _realOrig.
find "$partial/usr" -name '*.cmake' -exec sed -i "/_realOrig/! s#\([\"; ]\)/usr/\(lib\|include\)/#\1$folder/usr/\2/#g" {} +
# Absolute links, which would lead to this machine's files, and Debian's alternatives, which no script has made.
while IFS= read -r -d '' link; do
  ln -sfn "$folder$(readlink "$link")" "$link"
done < <(find "$partial" -type l -lname '/*' -print0)
mv "$partial" "$folder"
