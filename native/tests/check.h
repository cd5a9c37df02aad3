// A test framework of one page: TEST("sentence") { CHECK(condition); }
#pragma once

#include <cstdio>
#include <vector>

struct Test {
    const char *sentence;
    void (*run)();
};

inline std::vector<Test> &all_tests() {
    static std::vector<Test> tests;
    return tests;
}

inline int &failed_checks() {
    static int count = 0;
    return count;
}

struct Registration {
    Registration(const char *sentence, void (*run)()) { all_tests().push_back({sentence, run}); }
};

#define ACTNN_JOIN_(a, b) a##b
#define ACTNN_JOIN(a, b) ACTNN_JOIN_(a, b)
#define TEST(sentence)                                                                                                 \
    static void ACTNN_JOIN(test_, __LINE__)();                                                                         \
    static const Registration ACTNN_JOIN(registration_, __LINE__)(sentence, ACTNN_JOIN(test_, __LINE__));              \
    static void ACTNN_JOIN(test_, __LINE__)()

// A failing loop would print thousands of lines: the first ten say enough.
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition) && ++failed_checks() <= 10) {                                                                 \
            std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                      \
        }                                                                                                              \
    } while (0)
