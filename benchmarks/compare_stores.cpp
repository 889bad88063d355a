// writable_rows beside LMDB and SQLite: rows of a table larger than memory, read and changed in steps of training.
//
//     compare_stores STORE ROWS ROW_BYTES ROWS_PER_STEP STEPS COMMITS FOLDER [cold]
//
// STORE is tiffin, lmdb or sqlite. cold: the system's cache is dropped before each step (as root). All three are durable
// at a commit. FOLDER must not exist.
#include <tiffin/table/writable_rows.hpp>

#include <lmdb.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using ids_type = std::vector<std::int32_t>;

struct store {
    virtual ~store() = default;
    virtual void read(const ids_type& ids, std::byte* to) = 0;
    virtual void write(const ids_type& ids, const std::byte* from) = 0;
    virtual void commit() = 0;
};

struct tiffin_store final : store {
    tiffin_store(const fs::path& folder, std::size_t rows, std::size_t bytes)
        : file(tiffin::writable_rows::create(folder / "rows", rows, bytes, [](std::size_t id, auto to) {
                   std::fill(to.begin(), to.end(), static_cast<std::byte>(id));
               }).or_throw()) {}
    void read(const ids_type& ids, std::byte* to) override { file.read(ids, to).or_throw(); }
    void write(const ids_type& ids, const std::byte* from) override { file.write(ids, from).or_throw(); }
    void commit() override { file.commit().or_throw(); }

    tiffin::writable_rows file;
};

struct lmdb_store final : store {
    lmdb_store(const fs::path& folder, std::size_t rows, std::size_t bytes) : width(bytes) {
        check(mdb_env_create(&env));
        check(mdb_env_set_mapsize(env, rows * bytes * 4 + (std::size_t{1} << 30)));
        check(mdb_env_open(env, folder.c_str(), MDB_NOSYNC | MDB_NORDAHEAD, 0644));
        begin();
        check(mdb_dbi_open(now, nullptr, MDB_INTEGERKEY, &table));
        std::vector<std::byte> row(bytes);
        for (std::size_t id = 0; id < rows; ++id) {
            std::fill(row.begin(), row.end(), static_cast<std::byte>(id));
            put(static_cast<std::uint32_t>(id), row.data(), MDB_APPEND);
            if (id % 100000 == 99999) check(mdb_txn_commit(now)), begin();
        }
        commit();
    }
    ~lmdb_store() override {
        mdb_txn_abort(now);
        mdb_env_close(env);
    }
    void read(const ids_type& ids, std::byte* to) override {
        for (const std::int32_t id : ids) {
            auto key = static_cast<std::uint32_t>(id);
            MDB_val k{sizeof key, &key}, row{};
            check(mdb_get(now, table, &k, &row));
            std::memcpy(to, row.mv_data, width);
            to += width;
        }
    }
    void write(const ids_type& ids, const std::byte* from) override {
        for (std::size_t i = 0; i < ids.size(); ++i)
            put(static_cast<std::uint32_t>(ids[i]), const_cast<std::byte*>(from + i * width), 0);
    }
    void commit() override {
        check(mdb_txn_commit(now));
        check(mdb_env_sync(env, 1));
        begin();
    }

    static void check(int error) {
        if (error != 0) throw std::runtime_error(mdb_strerror(error));
    }
    void begin() { check(mdb_txn_begin(env, nullptr, 0, &now)); }
    void put(std::uint32_t key, std::byte* row, unsigned flags) {
        MDB_val k{sizeof key, &key}, v{width, row};
        check(mdb_put(now, table, &k, &v, flags));
    }
    std::size_t width;
    MDB_env* env = nullptr;
    MDB_txn* now = nullptr;
    MDB_dbi table = 0;
};

struct sqlite_store final : store {
    sqlite_store(const fs::path& folder, std::size_t rows, std::size_t bytes) : width(bytes) {
        sqlite3_open((folder / "rows").c_str(), &db);
        for (const char* const set :
             {"PRAGMA page_size=8192", "PRAGMA journal_mode=WAL", "PRAGMA cache_size=-65536",
              "CREATE TABLE r(id INTEGER PRIMARY KEY, v BLOB)", "BEGIN"})
            run(set);
        sqlite3_prepare_v2(db, "SELECT v FROM r WHERE id=?1", -1, &get, nullptr);
        sqlite3_prepare_v2(db, "INSERT OR REPLACE INTO r VALUES(?1, ?2)", -1, &put, nullptr);
        std::vector<std::byte> row(bytes);
        for (std::size_t id = 0; id < rows; ++id) {
            std::fill(row.begin(), row.end(), static_cast<std::byte>(id));
            write({static_cast<std::int32_t>(id)}, row.data());
        }
        commit();
    }
    ~sqlite_store() override {
        sqlite3_finalize(get);
        sqlite3_finalize(put);
        sqlite3_close(db);
    }
    void read(const ids_type& ids, std::byte* to) override {
        for (const std::int32_t id : ids) {
            sqlite3_bind_int64(get, 1, id);
            if (sqlite3_step(get) != SQLITE_ROW) throw std::runtime_error(sqlite3_errmsg(db));
            std::memcpy(to, sqlite3_column_blob(get, 0), width);
            to += width;
            sqlite3_reset(get);
        }
    }
    void write(const ids_type& ids, const std::byte* from) override {
        for (std::size_t i = 0; i < ids.size(); ++i) {
            sqlite3_bind_int64(put, 1, ids[i]);
            sqlite3_bind_blob(put, 2, from + i * width, static_cast<int>(width), SQLITE_STATIC);
            if (sqlite3_step(put) != SQLITE_DONE) throw std::runtime_error(sqlite3_errmsg(db));
            sqlite3_reset(put);
        }
    }
    void commit() override {
        for (const char* const step : {"COMMIT", "PRAGMA wal_checkpoint(TRUNCATE)", "BEGIN"}) run(step);
    }

    void run(const char* sql) {
        if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) != SQLITE_OK)
            throw std::runtime_error(sqlite3_errmsg(db));
    }
    std::size_t width;
    sqlite3* db = nullptr;
    sqlite3_stmt *get = nullptr, *put = nullptr;
};

template <class Work>
double seconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double median(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

void compare(std::span<char*> args) {
    const std::string which = args[1];
    const fs::path folder = args[7];
    const auto number = [&](std::size_t i) {
        return static_cast<std::size_t>(std::strtoull(args[i], nullptr, 10));
    };
    const std::size_t rows = number(2), bytes = number(3), per_step = number(4), steps = number(5),
                      commits = number(6);
    if (!fs::create_directory(folder)) throw std::runtime_error(folder.string() + " is there already");
    std::unique_ptr<store> of;
    if (which == "tiffin") of = std::make_unique<tiffin_store>(folder, rows, bytes);
    if (which == "lmdb") of = std::make_unique<lmdb_store>(folder, rows, bytes);
    if (which == "sqlite") of = std::make_unique<sqlite_store>(folder, rows, bytes);
    if (!of) throw std::runtime_error("STORE is tiffin, lmdb or sqlite");
    std::mt19937_64 random(7);
    std::vector<std::byte> some(per_step * bytes);
    std::vector<double> reads, writes, ends;
    for (std::size_t c = 0; c < commits; ++c) {
        for (std::size_t s = 0; s < steps; ++s) {
            ids_type ids;
            while (ids.size() < per_step) {
                while (ids.size() < per_step) ids.push_back(static_cast<std::int32_t>(random() % rows));
                std::sort(ids.begin(), ids.end());
                ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
            }
            if (args.size() > 8) {
                ::sync();
                std::ofstream("/proc/sys/vm/drop_caches") << 3;
            }
            reads.push_back(seconds([&] { of->read(ids, some.data()); }));
            for (std::size_t i = 0; i < some.size(); i += 64) some[i] ^= std::byte{1};
            writes.push_back(seconds([&] { of->write(ids, some.data()); }));
        }
        ends.push_back(seconds([&] { of->commit(); }));
    }
    std::uintmax_t disk = 0;
    for (const auto& file : fs::directory_iterator(folder)) disk += file.file_size();
    std::printf("%-6s per step: read %.1f ms, write %.1f ms; commit %.3f s; files %.0f MB\n", which.c_str(),
                1e3 * median(reads), 1e3 * median(writes), median(ends), static_cast<double>(disk) / 1e6);
    of.reset();
    fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc < 8 || argc > 9) throw std::runtime_error("see the head of compare_stores.cpp");
        compare({argv, static_cast<std::size_t>(argc)});
    } catch (const std::exception& e) {
        std::fprintf(stderr, "compare_stores: %s\n", e.what());
        return 1;
    }
}
