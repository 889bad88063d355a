// Whether a process is the one that set a mark, or a child of it.
#include <tiffin/executor/fork_mark.hpp>

#include "executor/in_child.hpp"
#include "support/doctest.hpp"

namespace executor_fork_mark_test {
using namespace tiffin;
using tiffin_test::holds_in_child;

namespace {

// In the process that made the mark, in its children, and in theirs after one has set it.
bool tells_children(detail::fork_mark& mark) {
    const bool in_child = holds_in_child([&] {
        if (mark.here()) return false;
        const bool in_grandchild = holds_in_child([&] { return !mark.here(); });
        mark.set();
        return in_grandchild && mark.here() && holds_in_child([&] { return !mark.here(); });
    });
    return mark.here() && in_child && mark.here();
}

}  // namespace

TEST_CASE("fork_mark: here, not in a child, and there once it is set there") {
    detail::fork_mark mark;
    CHECK(tells_children(mark));
}

TEST_CASE("fork_mark: where no page is to be had" NOT_UNDER_SANITIZERS) {
    CHECK(holds_in_child([] {
        if (!tiffin_test::limit_memory(0)) return false;
        detail::fork_mark mark;
        return tells_children(mark);
    }));
}

}  // namespace executor_fork_mark_test
