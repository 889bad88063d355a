// doctest with assertions that compile sooner. An exception that escapes from the expression of an
// assertion fails the test case as a whole then, not the assertion.
#pragma once

#define DOCTEST_CONFIG_SUPER_FAST_ASSERTS
#include <doctest/doctest.h>

#include <iosfwd>

namespace tiffin_test {

// The scope of an INFO. doctest's is a type, and ten functions, for each INFO of each instance of a template.
class info_scope final : public doctest::detail::ContextScopeBase {
public:
    template <class Tell>
    explicit info_scope(const Tell& tell) : tell_(&tell), call_(&call<Tell>) {}
    info_scope(const info_scope&) = delete;
    info_scope& operator=(const info_scope&) = delete;
    ~info_scope() override {
        if (need_to_destroy) destroy();
    }
    void stringify(std::ostream* to) const override { call_(tell_, to); }

private:
    template <class Tell>
    static void call(const void* tell, std::ostream* to) {
        (*static_cast<const Tell*>(tell))(to);
    }

    const void* tell_;
    void (*call_)(const void*, std::ostream*);
};

}  // namespace tiffin_test

#undef DOCTEST_INFO
#define DOCTEST_INFO(...)                                                                          \
    TIFFIN_TEST_INFO_(DOCTEST_ANONYMOUS(told_), DOCTEST_ANONYMOUS(to_), DOCTEST_ANONYMOUS(scope_), \
                      __VA_ARGS__)
#define TIFFIN_TEST_INFO_(told, to, scope, ...)                                                    \
    const auto told = [&](std::ostream* to) {                                                      \
        doctest::detail::MessageBuilder message(__FILE__, __LINE__, doctest::assertType::is_warn); \
        message.m_stream = to;                                                                     \
        message* __VA_ARGS__;                                                                      \
    };                                                                                             \
    const tiffin_test::info_scope scope(told)
