// Bundles the broker into dist/: the program, the database check, the modules that these load only
// when needed, and the web pages. Each file of the program has a source map. Part of `npm run
// build`.

import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { rolldown } from "rolldown";
import { bundlePage, PAGES } from "./build-pages.mjs";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const OUT = join(ROOT, "dist");
/** Entry points by the path of their output. The database check runs as a separate process. */
const PROGRAMS = {
  main: "src/main.ts",
  "store/embedded/engine/database-walk": "src/store/embedded/engine/database-walk.ts",
};
/**
 * Packages that are not bundled: those with native code, and `ws`, because a node reports the
 * version of `ws`.
 */
const EXTERNAL = ["lmdb", "msgpackr", "uWebSockets.js", "ws"];

/**
 * Replaces `import.meta.url` with the URL that the unbundled file would have, so that the code
 * finds the files beside its source.
 */
const ADDRESSES = {
  name: "addresses",
  load: {
    filter: { id: /\/src\/.*\.ts$/ },
    handler(path) {
      if (Object.values(PROGRAMS).includes(relative(ROOT, path))) return undefined;
      const address = `./${relative(join(ROOT, "src"), path).replace(/\.ts$/, ".js")}`;
      return readFileSync(path, "utf8").replaceAll(
        "import.meta.url",
        `new URL(${JSON.stringify(address)}, import.meta.url).href`,
      );
    },
  },
};

async function bundle() {
  const bundled = await rolldown({
    cwd: ROOT,
    input: PROGRAMS,
    platform: "node",
    transform: { target: "node20" },
    external: EXTERNAL,
    plugins: [ADDRESSES],
  });
  const { output } = await bundled.generate({
    format: "esm",
    chunkFileNames: "[name]-[hash].js", // beside main.js, as ADDRESSES requires
    topLevelVar: false, // V8 optimizes `const` better: 20 % more stored sends per second
    comments: false, // the licences are in LICENCES.txt
    sourcemap: true,
  });
  const files = new Map(
    output.map((file) => [
      file.fileName,
      file.type === "asset" ? withOurSources(file.fileName, JSON.parse(file.source)) : file.code,
    ]),
  );
  const pages = await Promise.all(PAGES.map((page) => bundlePage(ROOT, page)));
  for (const page of pages) for (const [path, text] of page.files) files.set(path, text);
  const modules = output.flatMap((file) => file.moduleIds ?? []);
  const inputs = [
    ...modules.map((path) => relative(ROOT, path)),
    ...pages.flatMap(({ inputs }) => inputs),
  ];
  files.set("LICENCES.txt", licencesOf(inputs));
  return files;
}

/** Keeps the text of our own sources in the source map, and removes that of packages. */
function withOurSources(name, map) {
  const sourcesContent = map.sources.map((source) => {
    const file = join(OUT, dirname(name), source);
    return file.startsWith(join(ROOT, "src")) ? readFileSync(file, "utf8") : null;
  });
  return JSON.stringify({ ...map, sourcesContent });
}

/** Returns the licences of the packages in the bundle. */
function licencesOf(inputs) {
  const folders = inputs.flatMap(
    (input) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(input) ?? [],
  );
  const texts = [...new Set(folders)].sort().map((folder) => {
    const { name, version, license } = JSON.parse(
      readFileSync(join(ROOT, folder, "package.json"), "utf8"),
    );
    const [file] = readdirSync(join(ROOT, folder)).filter((file) => /^licen[cs]e/i.test(file));
    const text = file === undefined ? "" : readFileSync(join(ROOT, folder, file), "utf8").trim();
    return `${name} ${version}, licence ${license}\n\n${text}`;
  });
  return `This program contains the packages below.\n\n${texts.join(`\n\n${"-".repeat(80)}\n\n`)}\n`;
}

function luaFiles() {
  return readdirSync(join(ROOT, "src"), { recursive: true })
    .filter((name) => name.endsWith(".lua"))
    .map((name) => [name, readFileSync(join(ROOT, "src", name), "utf8")]);
}

const files = new Map([...(await bundle()), ...luaFiles()]);
for (const [name, text] of files) {
  const file = join(OUT, name);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}
for (const entry of readdirSync(OUT, { recursive: true, withFileTypes: true })) {
  const file = join(entry.parentPath, entry.name);
  if (!entry.isDirectory() && !files.has(relative(OUT, file))) rmSync(file);
}
