// expect: tiffin: fold\(table\): this table is folded already
#include <tiffin/cpu/fold.hpp>
#include <tiffin/source/memory.hpp>

void use(const tiffin::weights& given, const tiffin::folded_table& table) {
#ifdef TIFFIN_EXPECT_PASS
    static_cast<void>(table);
    static_cast<void>(tiffin::fold(tiffin::static_memory{}, given));
#else
    static_cast<void>(given);
    tiffin::fold(table);
#endif
}
