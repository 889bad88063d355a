// expect: deleted (function|constructor)
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>

#ifdef TIFFIN_EXPECT_PASS
using table = const tiffin::in_memory&;
#else
using table = tiffin::in_memory;  // ends with the line
#endif

table open();

void use() {
    tiffin::prefetched_rows rows(open());
}
