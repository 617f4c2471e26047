#%Module
# nanorun, for Environment Modules. Finds its prefix from its own place, PREFIX/share/modulefiles/nanorun; where it lies
# elsewhere, write the prefix here.
set prefix [file dirname [file dirname [file dirname [file dirname $ModulesCurrentModulefile]]]]

proc ModulesHelp {} {
  puts stderr "nanorun trains GPT-2-sized language models with the recipe of the NanoGPT speedrun, as an MPI program."
  puts stderr "See man nanorun, nanorun keys, and $::prefix/share/doc/nanorun/README.md."
}
module-whatis "nanorun: the NanoGPT speedrun recipe as an MPI batch application"

if {![file isfile $prefix/bin/nanorun]} {
  puts stderr "nanorun: $ModulesCurrentModulefile does not lie in the prefix of nanorun: write the prefix into it"
  exit 1
}
conflict nanorun
# What the program was built with goes here, where users have to load it: module load gcc openmpi
prepend-path PATH $prefix/bin
# man finds the pages from the PATH, unless this variable says where else to look.
if {[info exists ::env(MANPATH)]} {
  prepend-path MANPATH $prefix/share/man
}
setenv NANORUN_JOBSCRIPTS $prefix/share/nanorun/jobscripts
