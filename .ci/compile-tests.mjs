// Compiles the TypeScript files in src/, test/, bench/ and .ci/ to JavaScript in .build/, so that
// test processes need no loader (compiled.cjs makes them run the compiled files). `tap` runs this
// program first. Only changed files are compiled. Types are not checked.

import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build, version } from "esbuild";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const OUT = join(ROOT, ".build");
const STAMP = join(OUT, "made-by.json");
const FOLDERS = ["src", "test", "bench", ".ci"];
/** Packages that are bundled. Otherwise every test process would read their 800 files. */
const BUNDLED = ["ioredis", "pino", "prom-client", "typebox", "typebox/compile", "typebox/value"];
const COMMON = { format: "esm", platform: "node", target: "node20" };

const bundleOf = (name) => join(OUT, "bundled", `${name.replace("/", "-")}.mjs`);
const outputOf = (source) => join(OUT, `${source.slice(0, -3)}.js`);
/**
 * Returns the time of the last change in whole milliseconds, because `utimesSync` cannot set it
 * more precisely.
 */
const mtimeOf = (file) => Math.floor(statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0);

/** Writes a temporary file and renames it, because another run may be reading the file. */
function put(file, contents) {
  mkdirSync(dirname(file), { recursive: true });
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, contents);
  renameSync(temporary, file);
}

/** Re-exports the packages by name, because esbuild finds no names in a CommonJS entry point. */
const EXPORTS = {
  name: "exports",
  setup(building) {
    building.onResolve({ filter: /./ }, ({ kind, path }) =>
      kind === "entry-point" ? { path, namespace: "exports" } : undefined,
    );
    building.onLoad({ filter: /./, namespace: "exports" }, async ({ path }) => ({
      contents: `export { ${(await namesOf(path)).join(", ")} } from "${path}";`,
      resolveDir: ROOT,
    }));
  },
};

async function namesOf(path) {
  return Object.keys(await import(path)).filter((name) => /^\w+$/.test(name));
}

async function bundlePackages() {
  const { outputFiles } = await build({
    ...COMMON,
    entryPoints: BUNDLED.map((name) => ({
      in: name,
      out: name.replace("/", "-"),
    })),
    bundle: true,
    splitting: true,
    plugins: [EXPORTS],
    // Packages in CommonJS call `require`, which an ES module lacks.
    banner: {
      js: 'import { createRequire as requireFrom } from "node:module";const require = requireFrom(import.meta.url);',
    },
    outdir: join(OUT, "bundled"),
    outExtension: { ".js": ".mjs" },
    absWorkingDir: ROOT,
    write: false,
  });
  for (const { path, contents } of outputFiles) put(path, contents);
}

/** Keeps imports, but makes them refer to the compiled files and the bundled packages. */
const imports = {
  name: "imports",
  setup(building) {
    building.onResolve({ filter: /./ }, ({ kind, path, resolveDir }) => {
      if (kind === "entry-point") return undefined;
      if (BUNDLED.includes(path)) {
        const from = join(OUT, relative(ROOT, resolveDir));
        return { path: relative(from, bundleOf(path)), external: true };
      }
      const isOurs = path.startsWith(".") && path.endsWith(".ts");
      return {
        path: isOurs ? `${path.slice(0, -3)}.js` : path,
        external: true,
      };
    });
  },
};

/**
 * Replaces `import.meta.url` with the URL of the source file, so that the code finds the files
 * beside its source.
 */
const ADDRESS = {
  define: { "import.meta.url": "__source" },
  banner: {
    js: 'const __source = import.meta.url.replace(/^(.*)\\/\\.build\\/(.*)\\.js(\\?.*)?$/s, "$1/$2.ts");',
  },
};

async function compile(sources) {
  const { outputFiles } = await build({
    ...COMMON,
    ...ADDRESS,
    entryPoints: sources,
    bundle: true,
    plugins: [imports],
    outdir: OUT,
    outbase: ROOT,
    absWorkingDir: ROOT,
    sourcemap: true,
    write: false,
  });
  for (const { path, contents } of outputFiles) put(path, contents);
  for (const source of sources) {
    const changed = new Date(mtimeOf(join(ROOT, source)));
    utimesSync(outputOf(source), changed, changed);
  }
}

function sourcesOf(folder) {
  return readdirSync(join(ROOT, folder), { recursive: true })
    .filter((name) => name.endsWith(".ts") && !name.endsWith(".d.ts"))
    .map((name) => join(folder, name));
}

/** Removes compiled files whose source no longer exists. */
function removeOrphans(sources) {
  const expected = new Set(sources.map(outputOf));
  for (const folder of FOLDERS.filter((name) => existsSync(join(OUT, name))))
    for (const name of readdirSync(join(OUT, folder), { recursive: true })) {
      const file = join(OUT, folder, name);
      if (file.endsWith(".js") && !expected.has(file)) rmSync(file);
    }
}

/** Returns the versions that determine the output. If they change, everything is compiled again. */
function compilerVersions() {
  const lock = JSON.parse(readFileSync(join(ROOT, "package-lock.json"), "utf8"));
  return JSON.stringify({
    esbuild: version,
    bundled: BUNDLED.map((name) => lock.packages[`node_modules/${name.split("/")[0]}`]?.version),
    by: mtimeOf(fileURLToPath(import.meta.url)),
  });
}

if (!existsSync(STAMP) || readFileSync(STAMP, "utf8") !== compilerVersions()) {
  rmSync(OUT, { recursive: true, force: true });
  await bundlePackages();
}
const sources = FOLDERS.flatMap(sourcesOf);
const stale = sources.filter((source) => mtimeOf(outputOf(source)) !== mtimeOf(join(ROOT, source)));
if (stale.length > 0) await compile(stale);
removeOrphans(sources);
if (!existsSync(STAMP)) put(STAMP, compilerVersions());
