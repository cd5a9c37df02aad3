// Runs every registered test and counts them.

#include "check.h"

int main() {
    int passed = 0, failed = 0;
    for (const Test &test : all_tests()) {
        failed_checks() = 0;
        test.run();
        const bool good = failed_checks() == 0;
        std::printf("%s  %s\n", good ? "ok  " : "FAIL", test.sentence);
        ++(good ? passed : failed);
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
