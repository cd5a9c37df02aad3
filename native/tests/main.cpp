// Runs every registered test, or with the arguments PART PARTS one in so many, and counts them.

#include <cstdlib>

#include "check.h"

int main(int count, char **words) {
    const size_t part = count == 3 ? std::strtoul(words[1], nullptr, 10) : 0;
    const size_t parts = count == 3 ? std::strtoul(words[2], nullptr, 10) : 1;
    if (part >= parts) {
        std::printf("usage: actnn_tests [PART PARTS], PART from 0 to PARTS - 1\n");
        return 2;
    }
    int passed = 0, failed = 0;
    for (size_t number = part; number < all_tests().size(); number += parts) {
        const Test &test = all_tests()[number];
        failed_checks() = 0;
        test.run();
        const bool good = failed_checks() == 0;
        std::printf("%s  %s\n", good ? "ok  " : "FAIL", test.sentence);
        ++(good ? passed : failed);
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
