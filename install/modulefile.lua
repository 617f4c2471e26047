-- nanorun, for Lmod. Finds its prefix from its own place, PREFIX/share/modulefiles/nanorun; where it lies elsewhere,
-- write the prefix here.
local prefix = myFileName():match("^(.*)/share/modulefiles/nanorun/[^/]*$")

whatis("Name: nanorun")
whatis("Version: " .. myModuleVersion())
whatis("Description: the NanoGPT speedrun recipe as an MPI batch application")

if not prefix or not isFile(pathJoin(prefix, "bin", "nanorun")) then
  LmodError("nanorun: " .. myFileName() .. " does not lie in the prefix of nanorun: write the prefix into it")
end
help([[nanorun trains GPT-2-sized language models with the recipe of the NanoGPT speedrun, as an MPI program.
See man nanorun, nanorun keys, and ]] .. pathJoin(prefix, "share", "doc", "nanorun", "README.md") .. ".")
conflict("nanorun")
-- What the program was built with goes here, where users have to load it: depends_on("gcc", "openmpi")
prepend_path("PATH", pathJoin(prefix, "bin"))
-- man finds the pages from the PATH, unless this variable says where else to look.
if os.getenv("MANPATH") then
  prepend_path("MANPATH", pathJoin(prefix, "share", "man"))
end
setenv("NANORUN_JOBSCRIPTS", pathJoin(prefix, "share", "nanorun", "jobscripts"))
