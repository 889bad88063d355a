// expect: deleted (function|constructor)
#include <tiffin/table/joined_columns.hpp>
#include <tiffin/table/row_store.hpp>

#ifdef TIFFIN_EXPECT_PASS
using table = const tiffin::in_memory&;
#else
using table = tiffin::in_memory;  // ends with the line
#endif

table open();

auto use(const tiffin::in_memory& other) {
    return tiffin::joined_columns::of({other, open()});
}
