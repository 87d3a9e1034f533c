// Builds the package `jindou-client` from src/client into dist-client/: one ES module with its
// source map, the same code as CommonJS, and one file of types. Part of `npm run build` and `npm
// run pack:client`. The client of `ws` is bundled as a separate minified module, which only Node.js
// and Deno load. As a dependency, `ws` would take half of this package's size limit.

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { decode, encode } from "@jridgewell/sourcemap-codec";
import { build } from "esbuild";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const OUT = join(ROOT, "dist-client");
/** Folder for the declarations that tsc creates for this build. */
const TYPES = mkdtempSync(join(tmpdir(), "jindou-types-"));
/** Entry points of the package. The first is the main entry point. */
const ENTRIES = ["index", "tab", "wechat"];
const MODULES = ["index", "find-socket", "no-socket"];
const COMMON = {
  absWorkingDir: ROOT,
  bundle: true,
  minify: true,
  lineLimit: 160,
  format: "esm",
  platform: "node",
  target: "es2022",
  write: false,
};

/**
 * Names of properties that only the SDK's own objects have. Shortening them makes the bundle 300
 * bytes smaller. A name that also occurs in the public types, in a string, or in an object of the
 * platform must not be in this list.
 */
const INTERNAL_NAMES =
  "absent acked assertOpen bool broken callListener connectFrame connectNow deliver draft " +
  "expect failed failures finish handlerFailed hasCursor hasEnded hasTokenFunction hold idle " +
  "inboxSeqs isAnnounced isBlocked isConnectSent isCounted isCurrent isEnd isFresh isLive " +
  "isOwn isReading isRunning isSending isTouched isUpToDate isWanted limitMs nextRef notified " +
  "onError onEvent onStream optionalText probe receive receiveRange renew restart resumed " +
  "seen sendsToken sentAt setHead settings settle sinceId startedBy stop stopTimeout " +
  "succeeded timer tuple uint";
const SHORT_NAMES = {
  mangleProps: new RegExp(`^(${INTERNAL_NAMES.replaceAll(" ", "|")})$`),
};

async function bundleClient() {
  const { outputFiles } = await build({
    ...COMMON,
    ...SHORT_NAMES,
    entryPoints: MODULES.map(sourceOf),
    outdir: OUT,
    sourcemap: "linked",
    plugins: [separateFiles("js"), PLATFORM_UTF8, SMALLER],
    pure: ["Date.UTC"],
  });
  for (const { path, text } of outputFiles)
    put(basename(path), path.endsWith(".map") ? smallMap(JSON.parse(text)) : text);
}

async function bundleOtherEntries() {
  const entryPoints = ENTRIES.slice(1).map(sourceOf);
  const { outputFiles } = await build({ ...COMMON, entryPoints, outdir: OUT, plugins: [SMALLER] });
  for (const { path, text } of outputFiles) put(basename(path), text);
}

/**
 * Builds the CommonJS form for `require` of Node.js, Jest, and other programs without ES modules.
 */
async function bundleCommonJs() {
  const { outputFiles } = await build({
    ...COMMON,
    ...SHORT_NAMES,
    format: "cjs",
    supported: { "dynamic-import": false }, // Jest has no `import()`
    entryPoints: [...MODULES, ...ENTRIES.slice(1)].map(sourceOf),
    outdir: OUT,
    outExtension: { ".js": ".cjs" },
    plugins: [separateFiles("cjs"), SMALLER],
    pure: ["Date.UTC"],
  });
  for (const { path, text } of outputFiles) put(basename(path), text);
}

function sourceOf(name) {
  return `src/client/${name}.ts`;
}

/**
 * Keeps `find-socket` and `ws` in separate files. The `browser` field of package.json replaces
 * whole files, so a bundler for browsers can leave them out only if they are separate. `ws` stays
 * CommonJS, which Node.js and every bundler can load from both forms of the package.
 */
function separateFiles(extension) {
  return {
    name: "separate files",
    setup(building) {
      building.onResolve({ filter: /^ws$|find-socket/ }, ({ kind, path }) => {
        if (kind === "entry-point") return undefined;
        const file = path === "ws" ? "ws.cjs" : `find-socket.${extension}`;
        return { path: `./${file}`, external: true };
      });
    },
  };
}

/**
 * Removes the replacement for TextEncoder and TextDecoder from the ES module, which is for
 * platforms that have both, such as browsers. The CommonJS form, which React Native, mini programs
 * and Jest load, keeps the replacement.
 */
const PLATFORM_UTF8 = {
  name: "platform utf8",
  setup(building) {
    building.onLoad({ filter: /\/src\/lib\/utf8\.ts$/ }, ({ path }) => {
      const source = readFileSync(path, "utf8");
      const contents = source.replaceAll(/typeof Text\w+ !== "undefined"/g, "true");
      return { contents, loader: "ts" };
    });
  },
};

/**
 * Replaces numeric constants with their values, because esbuild inlines constants only in modules
 * without imports. Removes the field names from the decoder, which uses them only in messages about
 * invalid frames from the server.
 */
const SMALLER = {
  name: "smaller",
  setup(building) {
    building.onLoad({ filter: /\/src\/.*\.ts$/ }, ({ path }) => {
      let contents = readFileSync(path, "utf8");
      const constants = contents.matchAll(/^const ([A-Z][A-Z\d_]+) = ([\d_.* ]+);$/gm);
      for (const [line, name, value] of constants)
        contents = contents
          .replace(line, "")
          .replaceAll(new RegExp(`\\b${name}\\b`, "g"), `(${value})`);
      contents = contents.replaceAll(
        /(reader\.(?:uint|text|bool|bin|list|tuple))\("[^"]*"/g,
        '$1(""',
      );
      return { contents, loader: "ts" };
    });
  },
};

async function bundleSocket() {
  const client = join(ROOT, "node_modules/ws/lib/websocket.js");
  const { outputFiles } = await build({
    ...COMMON,
    format: "cjs",
    stdin: {
      contents: `exports.WebSocket = require(${JSON.stringify(client)});`,
      resolveDir: ROOT,
    },
    // otherwise ws tries to load optional packages, and webpack warns that they are missing
    define: {
      "process.env.WS_NO_BUFFER_UTIL": "true",
      "process.env.WS_NO_UTF_8_VALIDATE": "true",
    },
    banner: { js: `/* The client of ws ${version("ws")}, MIT: see LICENSE. */` },
  });
  put("ws.cjs", outputFiles[0].text);
}

/**
 * Returns a source map that is a quarter of the size of esbuild's. It maps only to lines, not to
 * columns. It contains the sources in src/client without comments, imports and interfaces. The line
 * numbers do not change.
 */
function smallMap({ version, sources: paths, mappings }) {
  const sources = paths.map((path) => path.replace(/^(\.\.\/)+/, ""));
  const lines = decode(mappings).map((segments) =>
    segments
      .filter(
        ([, source, line], n) => source !== segments[n - 1]?.[1] || line !== segments[n - 1]?.[2],
      )
      .map((segment) => segment.slice(0, 4)),
  );
  return JSON.stringify({
    version,
    sources,
    sourcesContent: sources.map((path) =>
      path.startsWith("src/client/") ? onlyCode(read(path)) : null,
    ),
    names: [],
    mappings: encode(lines),
  });
}

/**
 * Makes a source smaller: empties the lines without code, which keeps the line numbers, and removes
 * the indentation and some keywords.
 */
function onlyCode(source) {
  const withoutLines = (text) => text.replaceAll(/[^\n]/g, "");
  return source
    .replaceAll(/^ *(\/\/|\/?\*).*$/gm, "")
    .replaceAll(/ +\/\/ .*$/gm, "")
    .replaceAll(/^import [^;]*;/gm, withoutLines)
    .replaceAll(/^(export )?interface [\s\S]*?^}/gm, withoutLines)
    .replaceAll(/^ +|\b(readonly|export) /gm, "");
}

function buildTypes() {
  try {
    const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
    const args = ["-p", "tsconfig.types.json", "--outDir", TYPES];
    execFileSync(process.execPath, [tsc, ...args], { cwd: ROOT, stdio: "inherit" });
    for (const entry of ENTRIES) writeTypes(entry);
  } finally {
    rmSync(TYPES, { recursive: true });
  }
}

/**
 * Writes the declarations that an entry exports, and those that they use, as one file. Removes
 * bracketed notes from comments, because they refer to pages about the server.
 */
function writeTypes(entry) {
  const declarations = new Map();
  const exported = new Set();
  const unions = [];
  readDeclarations(`client/${entry}.d.ts`, { declarations, exported, unions });
  for (const [name, table] of unions) {
    const keys = declarations.get(table).matchAll(/^ {4}readonly (\w+):/gm);
    const values = Array.from(keys, ([, key]) => JSON.stringify(key)).join(" | ");
    const declaration = declarations.get(name).replace(/keyof typeof \w+/, () => values);
    declarations.set(name, declaration);
  }
  const used = new Set(exported);
  for (const name of used)
    for (const [word] of declarations.get(name)?.matchAll(/[A-Za-z_]\w*/g) ?? [])
      if (declarations.has(word)) used.add(word);
  const text = [...used]
    .map((name) => {
      const declaration = declarations.get(name);
      if (declaration === undefined)
        throw new Error(`${entry} exports ${name}, which is not declared`);
      const keyword = exported.has(name) ? "export " : "";
      return declaration.replace(/^(export )?(declare )?(?=\w)/m, (_, _export, declare = "") =>
        keyword === "" && declare === "" && /^\w*const/.test(declaration)
          ? "declare "
          : keyword + declare,
      );
    })
    .join("")
    .replaceAll(/ \[(?:spec|decisions|issue|DESIGN|WKProto)\b[^\]]*\]/g, "")
    .replaceAll(/^(?: {4})+/gm, (indent) => "\t".repeat(indent.length / 4)); // tabs need less space
  put(`${entry}.d.cts`, `${text}export {};\n`);
  // An ES module can import from CommonJS, but CommonJS cannot import from an ES module.
  put(`${entry}.d.ts`, `export * from "./${entry}.cjs";\n`);
}

/**
 * Collects the declarations of a file and of the files it imports, with their comments. Adds the
 * names that the entry exports to `exported`, and the types that are the keys of a table to
 * `unions`.
 */
function readDeclarations(file, { declarations, exported, unions }, seen = new Set()) {
  if (seen.has(file)) return;
  seen.add(file);
  const source = readFileSync(join(TYPES, file), "utf8");
  for (const [statement] of source.matchAll(STATEMENT)) {
    const [, path] = / from "(\..*?)\.ts"/.exec(statement) ?? [];
    const imported = path && join(dirname(file), `${path}.d.ts`);
    if (imported) readDeclarations(imported, { declarations, unions }, seen);
    const isReexport = /^export [^=]*? from /.test(statement);
    if (exported && isReexport && statement.includes("*"))
      for (const name of namesIn(imported)) exported.add(name);
    else if (exported && isReexport)
      for (const [, name] of statement.matchAll(/(\w+)\s*[,}]/g)) exported.add(name);
    const [, name] = DECLARED.exec(statement) ?? [];
    if (name === undefined || imported) continue;
    declarations.set(name, statement);
    const [, table] = /= keyof typeof (\w+);$/m.exec(statement) ?? [];
    if (table) unions.push([name, table]);
    if (exported && /^export /m.test(statement)) exported.add(name);
  }
}

/** Matches a statement with the comment before it. tsc indents all lines inside a statement. */
const STATEMENT =
  /(?:^\/\*\*(?:(?!\*\/)[\s\S])*\*\/\n)?^(?:export|import|declare|interface|type|const)\b[\s\S]*?\n(?=[/a-z]|$(?![\s\S]))/gm;
const DECLARED =
  /^(?:export )?(?:declare )?(?:abstract )?(?:interface|type|const|class|function) (\w+)/m;

function namesIn(file) {
  const source = readFileSync(join(TYPES, file), "utf8");
  return [...source.matchAll(/^export (?:interface|type|declare \w+) (\w+)/gm)].map(
    ([, name]) => name,
  );
}

function manifest() {
  const own = JSON.parse(read("package.json"));
  return {
    name: "jindou-client",
    version: own.version,
    description: "Client of the Jindou messaging broker, for browsers and Node.js",
    license: own.license,
    type: "module",
    engines: { node: ">=20" },
    exports: {
      ...Object.fromEntries(ENTRIES.map(conditionsOf)),
      "./package.json": "./package.json",
    },
    main: "./index.cjs",
    module: "./index.js",
    types: "./index.d.ts",
    browser: {
      "./find-socket.js": "./no-socket.js",
      "./find-socket.cjs": "./no-socket.cjs",
    },
    sideEffects: false,
    files: readdirSync(OUT),
  };
}

/** Returns the path of an entry in `exports`, and its files for each condition. */
function conditionsOf(entry) {
  return [
    entry === "index" ? "." : `./${entry}`,
    {
      // React Native may lack TextEncoder and TextDecoder, for which the CommonJS form has a
      // replacement
      "react-native": { types: `./${entry}.d.cts`, default: `./${entry}.cjs` },
      import: { types: `./${entry}.d.ts`, default: `./${entry}.js` },
      require: { types: `./${entry}.d.cts`, default: `./${entry}.cjs` },
      default: `./${entry}.js`,
    },
  ];
}

function licence() {
  return `jindou-client is licensed under the Apache License, Version 2.0:
https://www.apache.org/licenses/LICENSE-2.0

ws.cjs is the client of ws ${version("ws")}, with this licence:

${read("node_modules/ws/LICENSE")}`;
}

function version(name) {
  return JSON.parse(read(`node_modules/${name}/package.json`)).version;
}

function read(path) {
  return readFileSync(join(ROOT, path), "utf8");
}

function put(path, text) {
  const file = join(OUT, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

rmSync(OUT, { recursive: true, force: true });
await bundleClient();
await bundleOtherEntries();
await bundleCommonJs();
await bundleSocket();
buildTypes();
put("README.md", read("src/client/README.md"));
put("LICENSE", licence());
put("package.json", `${JSON.stringify(manifest(), undefined, 2)}\n`);
