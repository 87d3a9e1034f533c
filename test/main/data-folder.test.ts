// Tests of a node whose data folder is lost, damaged, shared, copied or belongs to another program,
// with real folders and real processes. A refused start prints one line on standard error and
// changes nothing.

import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { draftOf } from "../contract/store-fixture.ts";
import { type LaunchOptions, launchBroker, spawnBroker, tempFolder } from "../support/broker.ts";
import { jindou } from "./jindou.ts";
import { damageTable, dataFile, forgetStop, stoppedFolder } from "./stopped-folder.ts";

const PAGE = 4096;
const NEW_STORE: LaunchOptions = { program: ["dist/main.js", "start", "--new-store"] };
const CHECKED = "The database was checked after an unclean stop";
const isRoot = process.getuid?.() === 0;

/** Starts a node that must not become ready, and returns its exit and its messages. */
async function refusal(t: Test, path: string, launch: LaunchOptions = {}) {
  const node = await launchBroker(t, {}, path, launch);
  const exit = await node.exited;
  const sentences = node
    .output()
    .split("\n")
    .filter((line) => line.startsWith("jindou: "));
  return { exit, sentences, output: node.output() };
}

async function assertRefused(t: Test, path: string, pattern: RegExp, name: string): Promise<void> {
  const { exit, sentences, output } = await refusal(t, path);
  t.same(exit, { code: 1, signal: null }, `${name}: ${output}`);
  t.equal(sentences.length, 1, `${name}: one sentence`);
  t.match(sentences[0], pattern, name);
  t.notMatch(output, /"stack"/, `${name}: no stack trace`);
}

t.test(
  "a data folder that has lost its database is refused unless --new-store begins a new store",
  async (t) => {
    const lost = await stoppedFolder(t);
    rmSync(dataFile(lost));
    const empty = await stoppedFolder(t);
    truncateSync(dataFile(empty));
    const unmounted = await stoppedFolder(t);
    rmSync(join(unmounted, "lmdb"), { recursive: true });
    const onlyJournal = await stoppedFolder(t);
    rmSync(join(onlyJournal, "lmdb"), { recursive: true });
    rmSync(join(onlyJournal, "heartbeat"));
    writeFileSync(join(onlyJournal, "journal", "00000007.log"), "");
    await assertRefused(t, lost, /data\.mdb is missing.*--new-store/, "missing database");
    await assertRefused(t, empty, /data\.mdb is empty.*--new-store/, "empty database");
    await assertRefused(t, unmounted, /data\.mdb is missing/, "missing folder");
    await assertRefused(
      t,
      onlyJournal,
      /data\.mdb is missing/,
      "a folder with only a WAL segment is refused",
    );
    t.notOk(existsSync(dataFile(lost)), "nothing was created in the folder");

    const node = await spawnBroker(t, {}, onlyJournal, NEW_STORE);
    const [former = ""] = readdirSync(onlyJournal).filter((name) => name.startsWith("old-"));
    t.same(readdirSync(join(onlyJournal, former, "journal")), ["00000007.log"]);
    t.match(node.output(), /The former store was moved/);
    t.equal(await node.terminate(), 0);
    const again = await refusal(t, onlyJournal, NEW_STORE);
    t.match(again.sentences, [/has a database, so --new-store is rejected/]);
    t.equal(
      await (await spawnBroker(t, {}, onlyJournal)).terminate(),
      0,
      "the new store starts without the flag",
    );
  },
);

t.test("--new-store does not touch a folder that another process uses", async (t) => {
  const path = await stoppedFolder(t);
  const node = await spawnBroker(t, {}, path);
  rmSync(dataFile(path));
  const { exit, sentences } = await refusal(t, path, NEW_STORE);
  t.equal(exit.code, 1);
  t.match(sentences, [/is in use by another process/]);
  t.same(readdirSync(path).sort(), ["heartbeat", "journal", "lmdb"]);
  await node.kill();
});

t.test("a node exits if its database file is replaced or overwritten", async (t) => {
  const other = await stoppedFolder(t);
  const replaced = await stoppedFolder(t);
  const first = await spawnBroker(t, {}, replaced);
  const copy = join(await tempFolder(t), "data.mdb");
  cpSync(dataFile(other), copy);
  renameSync(copy, dataFile(replaced));
  t.same(await first.exited, { code: 1, signal: null });
  t.match(first.output(), /data\.mdb was replaced by a different file/);

  const overwritten = await stoppedFolder(t);
  const second = await spawnBroker(t, {}, overwritten);
  overwrite(dataFile(overwritten), 0, readFileSync(dataFile(other)));
  t.same(await second.exited, { code: 1, signal: null });
  t.match(second.output(), /database was overwritten/);
});

t.test("a node whose database file was moved is not ready until the file is back", async (t) => {
  const path = await stoppedFolder(t);
  const node = await spawnBroker(t, {}, path);
  const status = async () => (await node.call("/readyz")).status;
  const becomes = async (expected: number) => {
    while ((await status()) !== expected) await pause(100);
  };
  renameSync(dataFile(path), join(path, "data.mdb"));
  await becomes(503);
  renameSync(join(path, "data.mdb"), dataFile(path));
  await becomes(200);
  t.equal(await node.terminate(), 0);
});

t.test("a first start that ends early does not prevent the next start", async (t) => {
  const path = join(await tempFolder(t), "data");
  mkdirSync(join(path, "journal"), { recursive: true });
  mkdirSync(join(path, "lmdb"));
  for (const bytes of [0, PAGE]) {
    writeFileSync(dataFile(path), Buffer.alloc(bytes));
    const node = await spawnBroker(t, {}, path);
    t.equal(await node.terminate(), 0, `${bytes} bytes`);
    for (const name of ["heartbeat", "lmdb/lock.mdb"]) rmSync(join(path, name));
  }
});

type Damage = (file: string) => void;

function overwrite(file: string, at: number, bytes: Buffer): void {
  const fd = openSync(file, "r+");
  writeSync(fd, bytes, 0, bytes.length, at);
  ftruncateSync(fd, Math.max(statSync(file).size, at + bytes.length));
}

function setLastPage(file: string, page: bigint): void {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(page);
  for (const at of [144, PAGE + 144]) overwrite(file, at, bytes);
}

t.test(
  "a database file that is truncated or has a damaged header is refused with a one-line message after a clean or an unclean stop",
  async (t) => {
    const path = await stoppedFolder(t);
    const { size } = statSync(dataFile(path));
    const damages: Readonly<Record<string, Damage>> = {
      "half of the file": (file) => truncateSync(file, size >> 1),
      "a text": (file) => writeFileSync(file, "hello\n".repeat(3000)),
      "100 bytes": (file) => writeFileSync(file, Buffer.alloc(100, 1)),
      "one byte": (file) => writeFileSync(file, "x"),
      "zeros at the start": (file) => overwrite(file, 0, Buffer.alloc(2 * PAGE)),
      "zeros in the second page": (file) => overwrite(file, PAGE, Buffer.alloc(PAGE)),
      "another page size": (file) => overwrite(file, 48, Buffer.from([1, 0, 0, 0])),
      "a root page beyond the end": (file) => {
        for (const at of [136, PAGE + 136])
          overwrite(file, at, Buffer.from([0, 0, 0, 1, 0, 0, 0, 0]));
      },
      "a last page beyond all memory": (file) => setLastPage(file, 2n ** 56n - 1n),
      "the highest page number": (file) => setLastPage(file, 2n ** 64n - 1n),
      "a last page beyond all addresses": (file) => setLastPage(file, 2n ** 35n),
      "a last page beyond the largest file": (file) => setLastPage(file, 2n ** 33n),
      "a last page 1 TiB beyond the end": (file) => setLastPage(file, 2n ** 28n + 4096n),
    };
    for (const [name, damage] of Object.entries(damages))
      await Promise.all(
        [true, false].map(async (isStopped) => {
          const copy = join(await tempFolder(t), "data");
          cpSync(path, copy, { recursive: true });
          damage(dataFile(copy));
          if (!isStopped) forgetStop(copy);
          await assertRefused(t, copy, /data\.mdb is damaged: .*Restore the data folder/, name);
        }),
      );
  },
);

t.test("a node starts despite a damaged table, reports it and serves other data", async (t) => {
  const path = await stoppedFolder(t);
  const { channel } = draftOf();
  const first = await spawnBroker(t, {}, path);
  const group = { channel_id: "intact", channel_type: 2, subscribers: ["alice"] };
  t.equal((await first.call("/channel", group)).status, 200);
  await first.terminate();
  damageTable(path, "log");
  forgetStop(path);

  const node = await spawnBroker(t, {}, path);
  const line =
    node
      .output()
      .split("\n")
      .find((text) => text.includes("Parts of the database are damaged")) ?? "{}";
  t.match(JSON.parse(line), {
    level: "error",
    err: { message: /^Reading the table log: .*MDB_CORRUPTED/ },
  });
  const history = `/channel/messages?channel_id=${channel.id}&channel_type=${channel.type}`;
  t.match(await node.call(history), { status: 500, body: { code: "internal" } });
  const members = await node.call("/channel/members?channel_id=intact&channel_type=2");
  t.match(members, { status: 200 });
  t.match(JSON.stringify(members.body), "alice");
  t.equal((await node.call("/readyz")).status, 200, "the node keeps running");
  await node.kill();
});

t.test(
  "a node starts on a database that names a last page up to 1 TiB beyond the end of its file",
  async (t) => {
    for (const page of [2n ** 20n, 2n ** 28n - 1n]) {
      const path = await stoppedFolder(t);
      setLastPage(dataFile(path), page);
      const node = await spawnBroker(t, {}, path);
      t.equal(await node.terminate(), 0, `page ${page}: ${node.output()}`);
    }
  },
);

t.test(
  "a database file that is a pipe or cannot be read is refused with a one-line message",
  async (t) => {
    const program = isRoot ? await readableProgram(t) : "";
    const path = await stoppedFolder(t);
    for (const name of ["data.mdb", "lock.mdb"]) {
      const parent = await tempFolder(t);
      chmodSync(parent, 0o755);
      const copy = join(parent, "data");
      cpSync(path, copy, { recursive: true });
      const file = join(copy, "lmdb", name);
      rmSync(file);
      spawnSync("mkfifo", [file]);
      await assertRefused(t, copy, /cannot be opened: it is not a regular file/, `a pipe ${name}`);
      if (!isRoot) {
        rmSync(file);
        cpSync(join(path, "lmdb", name), file);
        chmodSync(file, 0);
        await assertRefused(t, copy, /cannot be opened: EACCES/, `mode 0 of ${name}`);
        continue;
      }
      rmSync(file);
      cpSync(join(path, "lmdb", name), file); // belongs to root
      for (const folder of [copy, join(copy, "lmdb"), join(copy, "journal")])
        chownSync(folder, 4001, 4001);
      const { exit, sentences } = await refusal(t, copy, asUser(program, 4001, 4001));
      t.equal(exit.code, 1);
      t.match(sentences, [/cannot be opened: EACCES/], `${name} of root`);
    }
  },
);

const NO_FILE = /cannot be opened: it is not a regular file\. Move it away/;
const NO_TARGET = /is a broken symbolic link \(its target is .*\)\. Mount or create/;

/** Functions that replace a file of the data folder with something else. */
const replacements: Readonly<Record<string, (path: string) => void>> = {
  folder: (path) => mkdirSync(path),
  pipe: (path) => void spawnSync("mkfifo", [path]),
  "link to a folder": (path) => symlinkSync("/tmp", path),
  "link to nothing": (path) => symlinkSync("/nowhere/at/all", path),
  file: (path) => writeFileSync(path, ""),
};

t.test("a node refuses to start if a data file is a folder, a pipe or a broken link", async (t) => {
  const path = await stoppedFolder(t);
  const cases: [name: string, kind: string, pattern: RegExp][] = [
    ...["folder", "pipe"].flatMap((kind): [string, string, RegExp][] => [
      ["heartbeat", kind, NO_FILE],
      ["journal/00000009.log", kind, NO_FILE],
    ]),
    ["lmdb/lock.mdb", "folder", NO_FILE],
    ["heartbeat", "link to a folder", NO_FILE],
    ["lmdb/data.mdb", "link to nothing", NO_TARGET],
    ["lmdb/lock.mdb", "link to nothing", NO_TARGET],
    ["journal", "link to nothing", NO_TARGET],
    ["", "link to nothing", NO_TARGET],
    ["lmdb", "file", /is not a folder\. Move it away/],
    ["", "file", /is not a folder\. Move it away/],
  ];
  const runLane = async () => {
    for (let next = cases.pop(); next !== undefined; next = cases.pop()) {
      const [name, kind, pattern] = next;
      const copy = join(await tempFolder(t), "data");
      cpSync(path, copy, { recursive: true });
      rmSync(join(copy, name), { recursive: true, force: true });
      replacements[kind]?.(name === "" ? copy : join(copy, name));
      await assertRefused(t, copy, pattern, `a ${kind} ${name}`);
    }
  };
  await Promise.all([runLane(), runLane(), runLane()]);
});

t.test("a data folder whose parent is a file or a broken link is refused", async (t) => {
  const parent = await tempFolder(t);
  for (const [kind, pattern] of [
    ["link to nothing", NO_TARGET],
    ["file", /is not a folder/],
  ] as const) {
    replacements[kind]?.(join(parent, kind));
    await assertRefused(t, join(parent, kind, "data"), pattern, kind);
  }
  symlinkSync("loop", join(parent, "loop"));
  await assertRefused(t, join(parent, "loop"), NO_TARGET, "a link to itself");
});

t.test("a start with --new-store is refused if the heartbeat file is a pipe", async (t) => {
  const path = await stoppedFolder(t);
  for (const name of ["lmdb/data.mdb", "heartbeat"]) rmSync(join(path, name));
  replacements.pipe?.(join(path, "heartbeat"));
  const { exit, sentences } = await refusal(t, path, NEW_STORE);
  t.equal(exit.code, 1);
  t.match(sentences, [NO_FILE]);
});

t.test("a node checks its database after an unclean stop, but not after a clean one", async (t) => {
  const path = await stoppedFolder(t);
  const clean = await spawnBroker(t, {}, path);
  t.notMatch(clean.output(), CHECKED);
  await clean.kill();
  const unclean = await spawnBroker(t, {}, path);
  t.match(
    unclean.output(),
    new RegExp(`"ms":\\d+.*${CHECKED}`),
    "the log contains the time of the check",
  );
  t.equal(await unclean.terminate(), 0);
  t.notMatch((await spawnBroker(t, {}, path)).output(), CHECKED);
});

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** Returns the folders of the packages that the built program may load. */
function programPackages(): readonly string[] {
  const lock = JSON.parse(readFileSync(join(ROOT, "package-lock.json"), "utf8"));
  const packages = Object.entries<{ readonly dev?: boolean }>(lock.packages);
  return packages
    .filter(([path, { dev }]) => path !== "" && !dev && existsSync(join(ROOT, path)))
    .map(([path]) => path);
}

/**
 * Copies the built program to a folder that every user may read. The folder of this repository may
 * be readable only by its owner.
 */
async function readableProgram(t: Test): Promise<string> {
  const folder = await tempFolder(t);
  chmodSync(folder, 0o755);
  const binary = `_${process.platform}_${process.arch}_${process.versions.modules}.node`;
  // uWebSockets.js has a large binary for each version of Node.js.
  const filter = (path: string) => !basename(path).startsWith("uws_") || path.endsWith(binary);
  for (const path of ["package.json", "dist", ...programPackages()])
    cpSync(join(ROOT, path), join(folder, path), { recursive: true, filter });
  return join(folder, "dist", "main.js");
}

/** Returns the command that starts the program as another user with only this group. */
function asUser(program: string, uid: number, gid: number): LaunchOptions {
  const prefix = ["setpriv", `--reuid=${uid}`, `--regid=${gid}`, "--clear-groups"];
  return { prefix, program: [program, "start"] };
}

const modeOf = (path: string) => (statSync(path).mode & 0o7777).toString(8);

t.test(
  "a volume that is shared through a Unix group stays usable by every process user in the group",
  isRoot ? {} : { skip: "only root can start a process as another user" },
  async (t) => {
    const program = await readableProgram(t);
    const parent = await tempFolder(t);
    chmodSync(parent, 0o755);
    const path = join(parent, "volume");
    mkdirSync(path);
    mkdirSync(join(path, "lost+found"), { mode: 0o700 });
    chownSync(path, 0, 4242);
    chmodSync(path, 0o2775); // as Kubernetes makes it for `fsGroup`, and readable by others
    for (const uid of [4001, 4002]) {
      const node = await spawnBroker(t, {}, path, asUser(program, uid, 4242));
      const log = node.output().split("\n");
      t.notMatch(node.output(), /"level":"error"/);
      const notices = log.filter((line) => line.includes("belongs to another user"));
      t.match(notices, [/"level":"info"/], "one log line names what could not be changed");
      t.equal(modeOf(path), "2775");
      for (const name of ["journal", "lmdb"]) t.equal(modeOf(join(path, name)), "2770", name);
      const files = ["lmdb/data.mdb", "lmdb/lock.mdb", "heartbeat"];
      for (const segment of readdirSync(join(path, "journal"))) files.push(`journal/${segment}`);
      t.equal(files.length, 4);
      for (const name of files) t.equal(modeOf(join(path, name)), "660", name);
      // The second user takes over files of the first user, but has no permission to set their
      // times.
      if (uid === 4001) await node.kill();
      else t.equal(await node.terminate(), 0);
    }
  },
);

t.test(
  "a data folder with another program's files is refused, and its mode is not changed",
  async (t) => {
    const path = await tempFolder(t);
    writeFileSync(join(path, "notes.txt"), "mine");
    chmodSync(path, 0o755);
    await assertRefused(
      t,
      path,
      /contains files of another program, for example notes\.txt/,
      "file",
    );
    t.equal(modeOf(path), "755");
    t.same(readdirSync(path), ["notes.txt"]);
    const log = await tempFolder(t);
    mkdirSync(join(log, "journal", "2f6c"), { recursive: true });
    await assertRefused(t, log, /for example journal\/2f6c/, "a journal of another program");
    const volume = await tempFolder(t);
    mkdirSync(join(volume, "lost+found"));
    writeFileSync(join(volume, ".keep"), "");
    t.equal(
      await (await spawnBroker(t, {}, volume)).terminate(),
      0,
      "a folder with only ignored names is used",
    );
    writeFileSync(join(volume, "README"), "");
    t.equal(await (await spawnBroker(t, {}, volume)).terminate(), 0, "a file beside a store");
  },
);

/** Returns a folder whose node was killed, so that the folder still contains a WAL. */
async function killedFolder(t: Test): Promise<string> {
  const path = join(await tempFolder(t), "data");
  const node = await spawnBroker(t, {}, path);
  t.equal((await node.call("/user/token", { uid: "u", token: "t", device_flag: 0 })).status, 200);
  await node.kill();
  return path;
}

t.test("a database beside the WAL of a different store is refused", async (t) => {
  const wal = await killedFolder(t);
  const original = join(await tempFolder(t), "lmdb");
  cpSync(join(wal, "lmdb"), original, { recursive: true });
  const replaceDatabase = (by: string) => {
    rmSync(join(wal, "lmdb"), { recursive: true });
    cpSync(by, join(wal, "lmdb"), { recursive: true });
  };
  const segments = readdirSync(join(wal, "journal"));
  for (const [name, other] of [
    ["stopped", await stoppedFolder(t)],
    ["killed", await killedFolder(t)],
  ] as const) {
    replaceDatabase(join(other, "lmdb"));
    await assertRefused(t, wal, /0001\.log belongs to a different store from the database/, name);
    rmSync(join(wal, "heartbeat"));
    await assertRefused(t, wal, /belongs to a different store/, `${name}, without the heartbeat`);
  }
  t.same(readdirSync(join(wal, "journal")), segments, "the WAL was not changed");
  replaceDatabase(original);
  t.equal(
    await (await spawnBroker(t, {}, wal)).terminate(),
    0,
    "the node starts after its database is back",
  );
});

t.test("check-config reports a folder that a start would refuse", async (t) => {
  const lost = await stoppedFolder(t);
  rmSync(dataFile(lost));
  const foreign = await tempFolder(t);
  writeFileSync(join(foreign, "notes.txt"), "mine");
  for (const [path, pattern] of [
    [lost, /store\.path.*data\.mdb is missing/],
    [foreign, /store\.path.*files of another program/],
  ] as const) {
    const listen = { JINDOU_API_LISTEN: "127.0.0.1:0", JINDOU_CLIENT_LISTEN: "127.0.0.1:0" };
    const { code, stderr } = await jindou(t, ["check-config"], {
      env: { ...listen, JINDOU_STORE_PATH: path },
    });
    t.equal(code, 2);
    t.match(stderr, pattern);
  }
});

t.test("a node starts on a copy of a folder in use, but not on the folder itself", async (t) => {
  const path = await stoppedFolder(t);
  const node = await spawnBroker(t, {}, path);
  const copy = join(await tempFolder(t), "copy");
  cpSync(path, copy, { recursive: true });
  const second = await spawnBroker(t, {}, copy);
  t.equal(await second.terminate(), 0);
  const { sentences } = await refusal(t, path);
  t.match(sentences, [new RegExp(`${path} is in use by process ${node.process.pid}`)]);
  t.equal(await node.terminate(), 0);
});

t.test("a folder that the system cannot create is refused, and the process ends", async (t) => {
  await assertRefused(t, "/proc/jindou/data", /\/proc\/jindou.*ENOENT/, "below /proc");
});

const withoutProcSys = [
  "unshare",
  "--mount",
  "sh",
  "-c",
  'mount -t tmpfs none /proc/sys && exec "$@"',
  "sh",
];
const canHide =
  spawnSync(withoutProcSys[0] ?? "", [...withoutProcSys.slice(1), "true"]).status === 0;

t.test(
  "a node without /proc/sys starts, and keeps the channels that it acknowledged before a kill",
  canHide ? {} : { skip: "this machine does not allow new mount namespaces" },
  async (t) => {
    const launch: LaunchOptions = { prefix: withoutProcSys };
    const path = join(await tempFolder(t), "data");
    const channel = (round: number) => ({
      channel_id: `g${round}`,
      channel_type: 2,
      subscribers: ["u"],
    });
    for (let round = 0; round < 3; round++) {
      const node = await spawnBroker(t, {}, path, launch);
      for (let past = 0; past < round; past++)
        t.equal((await node.call("/channel", channel(past))).status, 409, `channel ${past} exists`);
      t.equal((await node.call("/channel", channel(round))).status, 200);
      await node.kill();
    }
    t.match(readFileSync(join(path, "heartbeat"), "utf8"), /^running /);
  },
);
