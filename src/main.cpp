#include "src/context.hpp"

int main(int argc, char** argv) {
  nanorun::Context context(argc, argv);
  return 0;
}
