// Builds the package `jindou-client` from src/client into dist-client/: one module with its source
// map, and its types. Part of `npm run build` and `npm run pack:client`. The
// client of `ws` is bundled as a separate minified module, which only a Node.js without WebSocket
// loads. As a dependency, `ws` alone would take half of the maximum size of this package.

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { decode, encode } from "@jridgewell/sourcemap-codec";
import { build } from "esbuild";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const OUT = join(ROOT, "dist-client");
const ENTRY = "client/index.d.ts";
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

async function bundleClient() {
  const { outputFiles } = await build({
    ...COMMON,
    entryPoints: ["index", "find-socket", "no-socket"].map((name) => `src/client/${name}.ts`),
    outdir: OUT,
    sourcemap: "linked",
    plugins: [SOCKETS, NUMBERS],
    pure: ["Date.UTC"],
  });
  for (const { path, text } of outputFiles)
    put(basename(path), path.endsWith(".map") ? smallMap(JSON.parse(text)) : text);
}

/**
 * Keeps `find-socket` and `ws` in files of their own. The field `browser` of the package replaces
 * whole files, so a browser bundler could not leave them out otherwise.
 */
const SOCKETS = {
  name: "sockets",
  setup(building) {
    building.onResolve({ filter: /^ws$|find-socket/ }, ({ kind, path }) => {
      if (kind === "entry-point") return undefined;
      return {
        path: path === "ws" ? "./ws.js" : "./find-socket.js",
        external: true,
      };
    });
  },
};

/**
 * Replaces numeric constants with their values. esbuild inlines constants only in modules without
 * imports.
 */
const NUMBERS = {
  name: "numbers",
  setup(building) {
    building.onLoad({ filter: /\/src\/.*\.ts$/ }, ({ path }) => {
      let contents = readFileSync(path, "utf8");
      const constants = contents.matchAll(/^const ([A-Z][A-Z\d_]+) = ([\d_.* ]+);$/gm);
      for (const [line, name, value] of constants)
        contents = contents
          .replace(line, "")
          .replaceAll(new RegExp(`\\b${name}\\b`, "g"), `(${value})`);
      return { contents, loader: "ts" };
    });
  },
};

async function bundleSocket() {
  const client = join(ROOT, "node_modules/ws/lib/websocket.js");
  const { outputFiles } = await build({
    ...COMMON,
    stdin: {
      contents: `export { default as WebSocket } from ${JSON.stringify(client)};`,
      resolveDir: ROOT,
    },
    banner: {
      js: `/* The client of ws ${version("ws")}, MIT: see LICENSE. */\n${REQUIRE}`,
    },
  });
  put("ws.js", outputFiles[0].text);
}

/** Defines `require`, because `ws` is CommonJS and requires modules of Node.js. */
const REQUIRE =
  'import { createRequire } from "node:module";const require = createRequire(import.meta.url);';

/**
 * Returns a source map with a third of the size of esbuild's. It maps only to lines, not to
 * columns, and its sources have no comments. The numbers of the lines do not change.
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
    sourcesContent: sources.map((path) => withoutComments(read(path))),
    names: [],
    mappings: encode(lines),
  });
}

/** Empties the lines of comments, so that the other lines keep their numbers. */
function withoutComments(source) {
  return source.replaceAll(/^ *(\/\/|\/?\*).*$/gm, "").replaceAll(/ +\/\/ .*$/gm, "");
}

function buildTypes() {
  const folder = mkdtempSync(join(tmpdir(), "jindou-types-"));
  try {
    const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
    const args = ["-p", "tsconfig.types.json", "--outDir", folder];
    execFileSync(process.execPath, [tsc, ...args], { cwd: ROOT, stdio: "inherit" });
    copyTypes(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/**
 * Copies the declaration files that the entry imports, directly or indirectly. Imports end in
 * `.js`, because TypeScript before 5.7 does not resolve `.ts` in declaration files.
 */
function copyTypes(folder) {
  const files = new Set([ENTRY]);
  for (const file of files) {
    const text = readFileSync(join(folder, file), "utf8");
    for (const [, path] of text.matchAll(/ from "(\..*?)\.ts"/g))
      files.add(join(dirname(file), `${path}.d.ts`));
    const declarations = text
      .replaceAll(/( from "\..*?)\.ts"/g, '$1.js"')
      .replaceAll(/^(?: {4})+/gm, (indent) => "\t".repeat(indent.length / 4)); // smaller
    put(join("types", file), declarations);
  }
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
      ".": { types: `./types/${ENTRY}`, default: "./index.js" },
      "./package.json": "./package.json",
    },
    types: `./types/${ENTRY}`,
    browser: { "./find-socket.js": "./no-socket.js" },
    sideEffects: false,
    files: readdirSync(OUT),
  };
}

function licence() {
  return `jindou-client is licensed under the Apache License, Version 2.0:
https://www.apache.org/licenses/LICENSE-2.0

ws.js is the client of ws ${version("ws")}, with this licence:

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
await bundleSocket();
buildTypes();
put("README.md", read("src/client/README.md"));
put("LICENSE", licence());
put("package.json", `${JSON.stringify(manifest(), undefined, 2)}\n`);
