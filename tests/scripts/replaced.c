// BUILD: -O0
// Executes another program.
#include <stdio.h>
#include <unistd.h>

int main(void) {
  execl("/bin/true", "true", NULL);
  return 1;
}
