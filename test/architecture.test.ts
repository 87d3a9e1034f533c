// Tests of the code base's rules: imports between rooms, and the length and form of files. They are
// part of `npm run check` and of `npm test`. The rules are applied to the current sources, and also
// to sample sources that break them.

import { fileURLToPath } from "node:url";
import t from "tap";
import {
  browserViolations,
  commentViolations,
  compatViolations,
  deadExports,
  formViolations,
  importCycles,
  type Limits,
  nameViolations,
  type Room,
  roomViolations,
  sizeViolations,
} from "./architecture/rules.ts";
import { readProject, readTexts } from "./architecture/source-facts.ts";

t.setTimeout(300_000); // `npm run check` runs this file without tap's runner and its time limit

/**
 * Sizes above which a file or function is reported. They are not enforced, because a limit produces
 * files that exist only to stay below it.
 */
const LIMITS: Limits = {
  fileLines: 400,
  functionLines: 60,
  parameters: 3,
  localImports: 7,
};
const DOMAIN = ["broker/model.ts", "broker/errors.ts"];
/** Files that the stores and the cluster may import from the broker. */
const PORTS = [
  ...DOMAIN,
  "broker/event-demand-ports.ts",
  "broker/event-ports.ts",
  "broker/lease-ports.ts",
  "broker/log-frame.ts",
  "broker/log-ports.ts",
  "broker/online-ports.ts",
  "broker/ports.ts",
  "broker/push-ports.ts",
  "broker/stream-event.ts",
  "broker/stream-record.ts",
  "broker/stream-fold.ts",
  "broker/webhook-ports.ts",
];
/** Rooms that every room may import. */
const COMMON = ["lib/", "observe/"];
/** Node.js modules that are used without I/O. */
const PURE_NODE = ["node:crypto", "node:zlib", "node:net", "node:buffer"];

/** Rooms that the files which start a node may import. */
const WIRED = [
  ...COMMON,
  "api/",
  "auth/",
  "broker/",
  "client/",
  "cluster/",
  "compat/",
  "config/",
  "hooks/",
  "outgoing/",
  "gateway/",
  "migrate/",
  "protocol/",
  "redis/",
  "store/",
  "transport/",
  "webhooks/",
];

/**
 * Imports allowed per room. A room is a folder or file below `src/`. It may also import its own
 * files.
 */
const ROOMS: Readonly<Record<string, Room>> = {
  "lib/": { local: [], packages: [], node: PURE_NODE },
  "observe/": {
    local: ["lib/"],
    packages: ["pino", "prom-client", "typebox"],
    // The log is written here, and the source maps for it are read here.
    node: ["node:fs", "node:net", "node:perf_hooks", "node:tty", "node:url"],
  },
  "broker/": { local: COMMON, packages: [], node: PURE_NODE },
  "protocol/": {
    local: [...COMMON, ...DOMAIN],
    packages: ["msgpackr", "typebox"],
    node: PURE_NODE,
  },
  "transport/": {
    local: COMMON,
    packages: ["ws"],
    node: "any",
  },
  // The only importer of the native library, which does not load on every system.
  "transport/uws/": {
    local: [...COMMON, "transport/"],
    packages: ["uWebSockets.js"],
    node: "any",
  },
  // Verifies tokens that other programs sign. The only importer of `jose`.
  "auth/": {
    local: [...COMMON, ...PORTS, "broker/credentials.ts", "broker/rights.ts"],
    packages: ["jose", "typebox"],
    node: [...PURE_NODE, "node:fs/promises"],
  },
  "hooks/": {
    local: [
      ...[...COMMON, ...PORTS, "outgoing/"],
      ...["broker/channel-patterns.ts", "broker/hooks.ts", "broker/rights.ts"],
    ],
    packages: ["typebox"],
    node: PURE_NODE,
  },
  // All outgoing HTTP, except for the keys of `auth/`. The only importer of `undici`.
  "outgoing/": { local: COMMON, packages: ["undici"], node: PURE_NODE },
  "gateway/": {
    local: [...COMMON, "broker/", "protocol/", "transport/types.ts"],
    packages: [],
    node: PURE_NODE,
  },
  "api/": {
    local: [...COMMON, "broker/", "transport/types.ts"],
    packages: ["typebox", "typebox/compile", "typebox/value"],
    node: PURE_NODE,
  },
  // Code that exists only for clients and backends written for WuKongIM.
  "compat/wukongim/": {
    local: [...COMMON, "api/", "broker/", "protocol/", "transport/types.ts", "webhooks/formats.ts"],
    packages: ["typebox"],
    node: PURE_NODE,
  },
  // Shared by the Redis store and the Redis cluster: connections, Lua steps, key names, and the
  // formats of records and publications.
  "redis/": {
    local: [...COMMON, ...PORTS],
    packages: ["ioredis", "msgpackr"],
    node: "any",
  },
  "store/": {
    // The step that appends a message checks the permission to send.
    local: [...COMMON, ...PORTS, "broker/permissions.ts", "redis/"],
    packages: ["lmdb", "msgpackr"],
    node: "any",
  },
  // Makes data durable. It must not depend on the steps.
  "store/embedded/engine/": {
    local: [...COMMON, ...PORTS],
    packages: ["lmdb"],
    node: "any",
  },
  // The steps. They must not depend on how data becomes durable, nor on the store that is built
  // from both.
  "store/embedded/steps/": {
    local: [
      ...COMMON,
      ...PORTS,
      "broker/permissions.ts",
      "store/command-draft.ts",
      "store/command-event.ts",
      "store/embedded/engine/",
      "store/event-ids.ts",
      "store/held-bytes.ts",
      "store/lifecycle.ts",
      "store/imported.ts",
      "store/newest-channels.ts",
      "store/newest-ends.ts",
      "store/payload-hash.ts",
      "store/sweep-failures.ts",
    ],
    packages: [],
    node: [...PURE_NODE, "node:timers/promises"],
  },
  // Depends on both stores, which must not depend on each other.
  "migrate/": {
    local: [...COMMON, ...PORTS, "redis/", "store/"],
    packages: [],
    node: "any",
  },
  "cluster/": {
    // Missed stream events are divided into pieces in the same way as in the broker.
    local: [...COMMON, ...PORTS, "broker/stream-pieces.ts", "redis/"],
    packages: ["ioredis"],
    node: "any",
  },
  "webhooks/": {
    local: [...[...COMMON, ...PORTS], ...["broker/events.ts", "broker/held-lease.ts", "outgoing/"]],
    packages: ["typebox"],
    node: "any",
  },
  "config/": {
    local: [
      ...COMMON,
      "api/options.ts",
      "auth/options.ts",
      "broker/options.ts",
      "cluster/options.ts",
      "compat/wukongim/options.ts",
      "gateway/options.ts",
      "hooks/options.ts",
      "migrate/options.ts",
      "redis/address.ts",
      "redis/options.ts",
      "store/options.ts",
      "transport/options.ts",
      // Check the syntax of settings that are neither numbers nor names.
      "broker/channel-patterns.ts",
      "outgoing/signature.ts",
      "webhooks/addresses.ts",
      "webhooks/options.ts",
      // The rule "no open API without a credential" involves several settings and is defined in one
      // place.
      "api/protected-mode.ts",
    ],
    packages: ["typebox", "typebox/value"],
    node: ["node:fs", "node:net", "node:path", "node:util"],
  },
  "client/": {
    local: ["lib/", "protocol/", "broker/model.ts", "broker/errors.ts"],
    packages: ["ws"],
    node: [],
  },
  // The package for backends, which runs in the user's process.
  "backend/": {
    local: [],
    packages: [],
    node: ["node:crypto", "node:timers/promises"],
  },
  // The commands that call a running node.
  "cli/": {
    local: [...COMMON, "client/", "config/"],
    packages: [],
    node: "any",
  },
  // The web pages, which use the SDK as an app does, by the name of its package.
  "demo/": { local: [], packages: ["jindou-client", "preact", "preact/hooks"], node: [] },
  "console/": {
    // The console rates the state of a node by the conditions of the alerts.
    local: ["observe/alerts.ts", "observe/conditions.ts"],
    packages: ["preact", "preact/hooks", "uplot"],
    node: [],
  },
  "server.ts": {
    local: [...WIRED, "server/"],
    packages: [],
    node: "any",
  },
  "server/": { local: WIRED, packages: [], node: "any" },
  "start.ts": {
    local: [
      ...COMMON,
      "broker/errors.ts",
      "config/",
      "server.ts",
      "server/library-output.ts",
      "server/start-error.ts",
      "signals.ts",
      "transport/drivers.ts",
    ],
    packages: [],
    node: "any",
  },
  "move.ts": {
    local: [
      ...COMMON,
      "config/",
      "migrate/",
      "server/library-output.ts",
      "server/migration.ts",
      "signals.ts",
    ],
    packages: [],
    node: "any",
  },
  "main.ts": { local: ["commands.ts", "config/help.ts", "signals.ts"], packages: [], node: [] },
  // Imports only the type of the commands, because no module may be loaded before signals are
  // handled.
  "signals.ts": { local: ["config/help.ts"], packages: [], node: [] },
  "commands.ts": {
    // `jindou hash-password` makes the hash that the broker verifies.
    local: [
      ...COMMON,
      "broker/passwords.ts",
      "cli/",
      "compat/wukongim/import/",
      "config/",
      "move.ts",
      "server/preflight.ts",
      "server/start-error.ts",
      "server/stopped-feed.ts",
      "signals.ts",
      "start.ts",
    ],
    packages: [],
    node: "any",
  },
};

/** The options of a room are a TypeBox schema, even if the room itself must not import TypeBox. */
for (const room of [
  ...["broker/", "cluster/", "gateway/", "migrate/", "redis/", "store/"],
  "transport/",
]) {
  const rule = ROOMS[room];
  if (rule === undefined) throw new Error(`${room} is not a room of the table`);
  Object.assign(ROOMS, {
    [`${room}options.ts`]: {
      ...rule,
      local: [...rule.local, room],
      packages: ["typebox"],
    },
  });
}

/** Folders whose files, with everything they import, run in browsers: the SDK and the pages. */
const BROWSER_SAFE = ["src/protocol/native/", "src/client/", "src/console/", "src/demo/"];

/**
 * Files whose exports the published packages use: the entries of `jindou-server` and of the SDK,
 * and the file that replaces `find-socket.ts` in browsers (see `package.json`).
 */
const PUBLISHED = ["src/backend/backend.ts", "src/client/index.ts", "src/client/no-socket.ts"];

const files = readProject(fileURLToPath(new URL("..", import.meta.url)));
const sources = files.filter((file) => file.path.startsWith("src/"));

t.test("the checks read more than 50 files, 200 functions and 200 imports", async (t) => {
  t.ok(sources.length > 50);
  t.ok(sources.flatMap((file) => file.functions).length > 200);
  t.ok(sources.flatMap((file) => file.imports).length > 200);
});

t.test("a folder of src imports only the files and packages that `ROOMS` allows", async (t) => {
  t.same(roomViolations(files, ROOMS), []);
});

t.test(
  "only src/compat/wukongim, src/server and src/config use the names WuKongIM and WKProto",
  async (t) => {
    t.same(compatViolations(files), []);
    const broken = readTexts({
      "src/broker/wukongim.ts": "// A file.\nexport const a = 1;",
      "src/gateway/b.ts":
        "// A file.\nexport function openWkproto() {\n  const wukongimView = 1;\n  return wukongimView;\n}",
      "src/compat/wukongim/c.ts": "// A file.\nexport const wkproto = 1;",
    });
    t.same([...compatViolations(broken)].sort(), [
      "src/broker/wukongim.ts has the name of another product",
      "src/gateway/b.ts declares openWkproto",
      "src/gateway/b.ts declares wukongimView",
    ]);
  },
);

t.test("imports have no cycles", async (t) => {
  t.same(importCycles(sources), []);
});

t.test("every export outside the packages' entry files is imported by another file", async (t) => {
  t.strictSame(deadExports(files, PUBLISHED), [], "no export is unused");
});

t.test("files and functions above the size limits are listed, but not as failures", async (t) => {
  const violations = sizeViolations(files, LIMITS);
  for (const violation of violations) t.comment(violation);
  t.comment(`${violations.length} files or functions exceed the limits`);
});

t.test("locals, parameters and private members have no vague names", async (t) => {
  t.strictSame(nameViolations(files), []);
});

t.test("doc comments do not begin with Of, Whose, What is and similar words", async (t) => {
  t.strictSame(commentViolations(files), []);
});

t.test(
  "a file begins with a comment, is not a barrel file and has no default export",
  async (t) => {
    t.same(formViolations(files), []);
  },
);

t.test("the files of the SDK and of the pages do not need Node.js", async (t) => {
  t.same(browserViolations(sources, BROWSER_SAFE), []);
});

t.test("a forbidden import is reported in every syntactic form", async (t) => {
  const broken = readTexts({
    "src/broker/a.ts": [
      'import type { X } from "../api/x.ts";',
      'export { y } from "uWebSockets.js";',
      'export const z = () => import("../store/z.ts");',
      'export type W = import("node:fs").Stats;',
      'import "../lib/fine.ts";',
    ].join("\n"),
    "src/elsewhere/b.ts": "export {};",
    "src/transport/types.ts": 'import "../broker/model.ts";',
  });
  t.same(
    [...roomViolations(broken, ROOMS)].sort(),
    [
      "src/broker/a.ts may not import ../api/x.ts",
      "src/broker/a.ts may not import uWebSockets.js",
      "src/broker/a.ts may not import ../store/z.ts",
      "src/broker/a.ts may not import node:fs",
      "src/elsewhere/b.ts is not in a room of the table",
      "src/transport/types.ts may not import ../broker/model.ts",
    ].sort(),
  );
});

t.test("an import cycle is reported, even if some of its imports are type-only", async (t) => {
  const broken = readTexts({
    "src/lib/a.ts": 'import "./b.ts";',
    "src/lib/b.ts": 'import type { C } from "./c.ts";',
    "src/lib/c.ts": 'import "./a.ts"; export interface C {}',
    "src/lib/d.ts": 'import "./a.ts"; import "./c.ts";',
  });
  t.equal(importCycles(broken).length, 1);
});

t.test("an export that no file imports is reported", async (t) => {
  const violations = deadExports(
    readTexts({
      "src/lib/a.ts":
        "// A\nexport const used = 1, unused = 2;\nexport type Shape = 1;\nexport function again() {}\nconst own = 3;",
      "src/lib/b.ts":
        '// B\nimport { used as mine } from "./a.ts";\nexport { again } from "./a.ts";\nexport class Whole {}',
      "src/lib/c.ts": '// C\nawait import("./b.ts");\nexport const sdk = 1;',
    }),
    ["src/lib/c.ts"],
  );
  t.strictSame(violations, [
    "src/lib/a.ts exports unused, which no file imports",
    "src/lib/a.ts exports Shape, which no file imports",
  ]);
});

t.test(
  "a file or function above a limit is reported, and inner functions are measured separately",
  async (t) => {
    const body = "  f();\n".repeat(5);
    const limits = {
      ...LIMITS,
      fileLines: 20,
      functionLines: 6,
      localImports: 1,
    };
    const broken = readTexts({
      "src/lib/long.ts": "//\n".repeat(21),
      "src/lib/fine.ts": "//\n".repeat(20),
      "src/lib/f.ts": `class C {\n  #m(a, b, c, d) {\n${body}  }\n}`,
      "src/lib/g.ts": `export const make = () => {\n  const f = () => {\n${body.slice(7)}  };\n  return f;\n};`,
      "src/lib/i.ts": 'import "./f.ts"; import "./g.ts";',
    });
    const violations = sizeViolations(broken, limits);
    t.same(
      [...violations].sort(),
      [
        "src/lib/f.ts #m has 4 parameters",
        "src/lib/f.ts #m has 7 lines",
        "src/lib/i.ts has 2 local imports",
        "src/lib/long.ts has 21 lines",
      ].sort(),
    );
  },
);

t.test(
  "a file without an opening comment, with a default export, or with nothing but re-exports is reported",
  async (t) => {
    const broken = readTexts({
      "src/lib/a.ts": "export default 1;",
      "src/lib/b.ts": "// x\nexport default function f() {}",
      "src/lib/index.ts": "// x\nexport const a = 1;",
      "src/lib/c.ts": '// x\nexport * from "./a.ts";',
      "src/client/index.ts": '// x\nexport * from "../lib/a.ts";',
      "src/main.ts": "#!/usr/bin/env node\n// x\nexport {};",
    });
    t.equal(formViolations(broken).length, 5);
  },
);

t.test("a vague name is reported, unless it is a parameter of a one-line closure", async (t) => {
  const files = readTexts({
    "src/lib/a.ts": [
      "class C {\n  #parts = 1;\n  #cursor = 2;\n}",
      "const parts = 'a b'.split(' ');",
      "const { name: found, rest: [given] } = x;",
      "for (const one of parts) f(one);",
      "export function g(parts: P, { known }: K, member: M) {}",
      "const isShort = parts.filter((one) => one.length < 2);",
      "const isLong = parts.filter((said) => {\n  return said.length > 2;\n});",
    ].join("\n"),
  });
  t.strictSame(nameViolations(files), [
    'src/lib/a.ts:2 names a private member "#parts"',
    'src/lib/a.ts:6 names a variable "found"',
    'src/lib/a.ts:6 names a variable "given"',
    'src/lib/a.ts:7 names a variable "one"',
    'src/lib/a.ts:8 names a parameter "parts"',
    'src/lib/a.ts:8 names a parameter "known"',
    'src/lib/a.ts:10 names a parameter "said"',
  ]);
});

t.test("a doc comment that begins with Of, What is or a similar word is reported", async (t) => {
  const docComment = (text: string) => ["/**", text, "*/"].join(" ");
  const files = readTexts({
    "src/lib/a.ts": [
      `${docComment("Of all sessions.")}\nconst a = 1;`,
      "/**\n * What is left of it.\n */\nconst b = 1;",
      "/** Maximum number of sessions. */\nconst c = 1;",
    ].join("\n"),
  });
  t.strictSame(commentViolations(files), [
    'src/lib/a.ts:1 begins a doc comment with "Of all sessions. */"',
    'src/lib/a.ts:3 begins a doc comment with "What is left of it."',
  ]);
});

t.test("a dependency on Node.js is reported, even if it is in an imported file", async (t) => {
  const broken = readTexts({
    "src/client/a.ts": 'import "../lib/b.ts"; export const x = y.process;',
    "src/lib/b.ts": 'import "node:fs"; export const n = Buffer.alloc(1);',
    "src/lib/c.ts": "export const n = Buffer.alloc(1);",
  });
  t.same(browserViolations(broken, ["src/client/"]), [
    "src/lib/b.ts needs node:fs",
    "src/lib/b.ts needs Buffer",
  ]);
});
