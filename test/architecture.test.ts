// The rules of the code base: who imports whom, how long things are, what form a file has. Part of
// `npm run check` and of `npm test`. Reads the sources as they are now; the rules themselves are
// first tried on files that break them.

import { fileURLToPath } from "node:url";
import t from "tap";
import {
  browserViolations,
  commentViolations,
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

/** Reported, not enforced: a gate on sizes produces files that exist for the gate. */
const LIMITS: Limits = {
  fileLines: 400,
  functionLines: 60,
  parameters: 3,
  localImports: 7,
};
const DOMAIN = ["broker/model.ts", "broker/errors.ts"];
const PORTS = [...DOMAIN, "broker/ports.ts"];
/** Open to all. */
const COMMON = ["lib/", "observe/"];
/** Computation without input or output. */
const PURE_NODE = ["node:crypto", "node:zlib", "node:net", "node:buffer"];

/** What the wiring of a node puts together. */
const WIRED = [
  ...COMMON,
  "api/",
  "broker/",
  "client/",
  "cluster/",
  "config/",
  "gateway/",
  "migrate/",
  "protocol/",
  "redis/",
  "store/",
  "transport/",
  "webhook/",
];

const ROOMS: Readonly<Record<string, Room>> = {
  "lib/": { local: [], packages: [], node: PURE_NODE },
  "observe/": {
    local: ["lib/"],
    packages: ["pino", "prom-client", "typebox"],
    node: ["node:perf_hooks"],
  },
  "broker/": { local: COMMON, packages: [], node: PURE_NODE },
  "protocol/": {
    local: [...COMMON, ...DOMAIN],
    packages: ["msgpackr", "typebox"],
    node: PURE_NODE,
  },
  "transport/": {
    local: COMMON,
    packages: ["uWebSockets.js"],
    node: "any",
  },
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
  // One server for both drivers: connections, steps in Lua, names of keys, what is written and
  // published.
  "redis/": {
    local: [...COMMON, ...PORTS],
    packages: ["ioredis", "msgpackr"],
    node: "any",
  },
  "store/": {
    // Who may send is judged in the step that appends.
    local: [...COMMON, ...PORTS, "broker/permissions.ts", "redis/"],
    packages: ["lmdb", "msgpackr"],
    node: "any",
  },
  // What makes data durable: it does not know the steps.
  "store/embedded/engine/": {
    local: [...COMMON, ...PORTS],
    packages: ["lmdb"],
    node: "any",
  },
  // What a step does: it does not know how it becomes durable, nor the driver that is made of it.
  "store/embedded/steps/": {
    local: [
      ...COMMON,
      ...PORTS,
      "broker/permissions.ts",
      "store/command-draft.ts",
      "store/embedded/engine/",
      "store/held-bytes.ts",
      "store/lifecycle.ts",
    ],
    packages: [],
    node: [...PURE_NODE, "node:timers/promises"],
  },
  // Knows both drivers of the store, which know nothing of each other.
  "migrate/": {
    local: [...COMMON, ...PORTS, "redis/", "store/"],
    packages: [],
    node: "any",
  },
  "cluster/": {
    // What a stream's viewers missed is told as the broker tells it.
    local: [...COMMON, ...PORTS, "broker/stream-pieces.ts", "redis/"],
    packages: ["ioredis"],
    node: "any",
  },
  "webhook/": { local: [...COMMON, ...PORTS], packages: [], node: "any" },
  "config/": {
    local: [
      ...COMMON,
      "api/options.ts",
      "broker/options.ts",
      "cluster/options.ts",
      "gateway/options.ts",
      "migrate/options.ts",
      "protocol/options.ts",
      "redis/options.ts",
      "store/options.ts",
      "transport/options.ts",
      // The rule "no open API without a credential" is one between keys, and is said once.
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
  "admin/": { local: ["client/"], packages: [], node: [] },
  "server.ts": {
    local: [...WIRED, "server/"],
    packages: [],
    node: "any",
  },
  "server/": { local: WIRED, packages: [], node: "any" },
  "start.ts": {
    local: [...COMMON, "broker/errors.ts", "config/", "server.ts", "server/start-error.ts"],
    packages: [],
    node: "any",
  },
  "move.ts": {
    local: [...COMMON, "config/", "migrate/", "server/migration.ts"],
    packages: [],
    node: "any",
  },
  "main.ts": {
    // `jindou hash-password` makes the hash the broker checks.
    local: [
      ...COMMON,
      "broker/passwords.ts",
      "config/",
      "move.ts",
      "server/preflight.ts",
      "server/start-error.ts",
      "start.ts",
    ],
    packages: [],
    node: "any",
  },
};

/** A room's options are a TypeBox schema, whatever else the room may import. */
for (const room of [
  ...["broker/", "cluster/", "gateway/", "migrate/", "redis/", "store/"],
  "transport/",
]) {
  const rule = ROOMS[room];
  if (rule === undefined) throw new Error(`${room} is no room`);
  Object.assign(ROOMS, {
    [`${room}options.ts`]: {
      ...rule,
      local: [...rule.local, room],
      packages: ["typebox"],
    },
  });
}

/** Taken into browsers by the SDK. */
const BROWSER_SAFE = ["src/protocol/native/", "src/client/"];

/** What the SDK exports, and what a browser takes in place of `find-socket.ts` (package.json). */
const PUBLISHED = ["src/client/index.ts", "src/client/no-socket.ts"];

const files = readProject(fileURLToPath(new URL("..", import.meta.url)));
const sources = files.filter((file) => file.path.startsWith("src/"));

t.test("the sources were read", async (t) => {
  t.ok(sources.length > 50);
  t.ok(sources.flatMap((file) => file.functions).length > 200);
  t.ok(sources.flatMap((file) => file.imports).length > 200);
});

t.test("a room imports only what the table allows", async (t) => {
  t.same(roomViolations(files, ROOMS), []);
});

t.test("no imports go round in a circle", async (t) => {
  t.same(importCycles(sources), []);
});

t.test("what is exported is imported somewhere", async (t) => {
  t.strictSame(deadExports(files, PUBLISHED), [], "no dead exports");
});

t.test("what is long is reported", async (t) => {
  const found = sizeViolations(files, LIMITS);
  for (const one of found) t.comment(one);
  t.comment(`${found.length} over the sizes of most files`);
});

t.test("vague names and fragments of comments are reported", async (t) => {
  t.comment(`${nameViolations(files).length} vague names`);
  t.comment(`${commentViolations(files).length} doc comments without a subject`);
});

t.test("a file opens with a comment, is no barrel and exports nothing as default", async (t) => {
  t.same(formViolations(files), []);
});

t.test("what the SDK takes along needs no Node.js", async (t) => {
  t.same(browserViolations(sources, BROWSER_SAFE), []);
});

t.test("a forbidden import of any form is found", async (t) => {
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
      "src/elsewhere/b.ts is in no room of the table",
      "src/transport/types.ts may not import ../broker/model.ts",
    ].sort(),
  );
});

t.test("a circle is found, types included", async (t) => {
  const broken = readTexts({
    "src/lib/a.ts": 'import "./b.ts";',
    "src/lib/b.ts": 'import type { C } from "./c.ts";',
    "src/lib/c.ts": 'import "./a.ts"; export interface C {}',
    "src/lib/d.ts": 'import "./a.ts"; import "./c.ts";',
  });
  t.equal(importCycles(broken).length, 1);
});

t.test("an export that nothing takes is found", async (t) => {
  const found = deadExports(
    readTexts({
      "src/lib/a.ts":
        "// A\nexport const used = 1, unused = 2;\nexport type Shape = 1;\nexport function again() {}\nconst own = 3;",
      "src/lib/b.ts":
        '// B\nimport { used as mine } from "./a.ts";\nexport { again } from "./a.ts";\nexport class Whole {}',
      "src/lib/c.ts": '// C\nawait import("./b.ts");\nexport const sdk = 1;',
    }),
    ["src/lib/c.ts"],
  );
  t.strictSame(found, [
    "src/lib/a.ts exports unused, which no file imports",
    "src/lib/a.ts exports Shape, which no file imports",
  ]);
});

t.test("what is too long is found, each function by itself", async (t) => {
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
  const found = sizeViolations(broken, limits);
  t.same(
    [...found].sort(),
    [
      "src/lib/f.ts #m has 4 parameters",
      "src/lib/f.ts #m has 7 lines",
      "src/lib/i.ts has 2 local imports",
      "src/lib/long.ts has 21 lines",
    ].sort(),
  );
});

t.test("a file of the wrong form is found", async (t) => {
  const broken = readTexts({
    "src/lib/a.ts": "export default 1;",
    "src/lib/b.ts": "// x\nexport default function f() {}",
    "src/lib/index.ts": "// x\nexport const a = 1;",
    "src/lib/c.ts": '// x\nexport * from "./a.ts";',
    "src/client/index.ts": '// x\nexport * from "../lib/a.ts";',
    "src/main.ts": "#!/usr/bin/env node\n// x\nexport {};",
  });
  t.equal(formViolations(broken).length, 5);
});

t.test("a vague name is reported, except a parameter of a closure of one line", async (t) => {
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

t.test("a doc comment that begins without a subject is reported", async (t) => {
  const files = readTexts({
    "src/lib/a.ts": [
      "/** Of all sessions. */\nconst a = 1;",
      "/**\n * What is left of it.\n */\nconst b = 1;",
      "/** Maximum number of sessions. */\nconst c = 1;",
    ].join("\n"),
  });
  t.strictSame(commentViolations(files), [
    'src/lib/a.ts:1 begins a doc comment with "Of all sessions. */"',
    'src/lib/a.ts:3 begins a doc comment with "What is left of it."',
  ]);
});

t.test("a need for Node.js is found, also further down", async (t) => {
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
