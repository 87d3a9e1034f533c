// Proves that a commit changes only comments, layout and private names: the minified programs, and
// the Lua files without their comments, are byte-for-byte equal to those of the parent commit.
// `node .ci/same-program.mjs FROM..TO` checks each commit of a range and lists those that differ.
// `node .ci/same-program.mjs REF` compares the working tree with REF. Exits with 1 on a difference.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { build } from "esbuild";

const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$";
/** Difference in frequency between neighbouring letters of the order file. */
const LETTER_WEIGHT = 4000;

const PARTS = [
  ...["src", "bench", "test/support", "test/durable-streams"],
  ...[".ci", "package.json", "tsconfig.json"],
];
/**
 * Matches the files of `bench` that are started as programs. Exports of other files may be renamed.
 */
const BENCH_PROGRAM = /^bench\/([^/]+|(support|peers)\/.*-(process|server))\.ts$/;

const git = (...args) => execFileSync("git", args, { encoding: "utf8", maxBuffer: 1 << 28 }).trim();

const root = git("rev-parse", "--show-toplevel");
const work = mkdtempSync(join(tmpdir(), "same-program-"));

/** Returns the files below `folder`/`name` that have one of the endings. */
function filesIn(folder, name, ...endings) {
  const path = join(folder, name);
  if (!existsSync(path)) return [];
  return readdirSync(path, { recursive: true })
    .filter((file) => endings.some((ending) => file.endsWith(ending)))
    .map((file) => `${name}/${file}`)
    .sort();
}

/** Checks out a commit, or copies the working tree if `ref` is `undefined`. Returns the folder. */
function checkOut(ref) {
  const folder = join(work, ref ?? "tree");
  if (existsSync(folder)) return folder;
  mkdirSync(folder);
  if (ref === undefined) {
    for (const part of PARTS) cpSync(join(root, part), join(folder, part), { recursive: true });
  } else {
    const parts = PARTS.filter((part) => git("ls-tree", "--name-only", ref, part) !== "");
    const archive = execFileSync("git", ["archive", ref, ...parts], {
      cwd: root,
      maxBuffer: 1 << 28,
    });
    execFileSync("tar", ["-x", "-C", folder], { input: archive });
  }
  symlinkSync(join(root, "node_modules"), join(folder, "node_modules"));
  return folder;
}

/**
 * Writes a file that fixes the short names esbuild chooses, and returns its path. esbuild prefers
 * the letters that are frequent in the source text, so a renamed type would change the short names.
 * The file repeats each letter so often that the frequencies in the source no longer matter.
 */
function writeOrder(folder) {
  const texts = filesIn(folder, "src", ".ts").map((file) =>
    readFileSync(join(folder, file), "utf8"),
  );
  const counts = new Map([...LETTERS].map((letter) => [letter, 0]));
  for (const letter of texts.join("")) {
    const count = counts.get(letter);
    if (count !== undefined) counts.set(letter, count + 1);
  }
  const order = [...LETTERS].sort((a, b) => counts.get(b) - counts.get(a));
  const text = order
    .map((letter, at) => letter.repeat((order.length - at) * LETTER_WEIGHT))
    .join("");
  const file = join(work, "order.js");
  writeFileSync(file, `globalThis.x = "${text}"`);
  return file;
}

/** Returns a hash for each program and Lua file of a checkout, by name. */
async function hashesOf(folder, order) {
  const node = [
    "src/main.ts",
    "src/client/index.ts",
    ...filesIn(folder, ".ci", ".ts", ".mjs"),
    ...filesIn(folder, "bench", ".ts").filter((file) => BENCH_PROGRAM.test(file)),
  ].filter((file) => !file.endsWith("same-program.mjs"));
  const hashes = new Map();
  for (const platform of ["node", "browser"]) {
    const entryPoints = platform === "node" ? node : ["src/client/index.ts"];
    const { outputFiles } = await build({
      absWorkingDir: folder,
      entryPoints,
      outdir: "out",
      outbase: ".",
      bundle: true,
      minify: true,
      format: "esm",
      packages: "external",
      platform,
      inject: [order],
      write: false,
      logLevel: "error",
      ...(platform === "browser" && { external: ["node:*"] }),
    });
    for (const { path, contents } of outputFiles)
      hashes.set(`${platform} ${path.slice(folder.length + 5)}`, hashOf(contents));
  }
  for (const file of filesIn(folder, "src", ".lua")) {
    const text = readFileSync(join(folder, file), "utf8");
    hashes.set(file, hashOf(withoutComments(text)));
  }
  return hashes;
}

const hashOf = (content) => createHash("sha1").update(content).digest("hex");

/** Drops comments and empty lines, like `loadScript`. */
function withoutComments(lua) {
  return lua.replace(/('[^'\n]*'|"[^"\n]*")|[ \t]*--[^\n]*/g, "$1").replace(/\n+/g, "\n");
}

/** Hashes by checkout folder. In a range, most checkouts are compared twice. */
const hashes = new Map();

/** Returns the names of the programs and Lua files that differ between two checkouts. */
async function differences(before, after, order) {
  for (const folder of [before, after])
    if (!hashes.has(folder)) hashes.set(folder, await hashesOf(folder, order));
  const [oldHashes, newHashes] = [hashes.get(before), hashes.get(after)];
  const names = new Set([...oldHashes.keys(), ...newHashes.keys()]);
  return [...names].filter((name) => oldHashes.get(name) !== newHashes.get(name));
}

/** Prints the result of a comparison and returns whether the programs are equal. */
function report(title, names) {
  const verdict = names.length === 0 ? "equal  " : "differs";
  const maxNames = 6;
  const list = names.slice(0, maxNames).join(", ") + (names.length > maxNames ? ", …" : "");
  process.stdout.write(`${verdict} ${title}${list && `\n        in ${names.length}: ${list}`}\n`);
  return names.length === 0;
}

const [range] = process.argv.slice(2);
if (range === undefined) throw new Error("Pass a range of commits, FROM..TO, or one commit");
let isEqual = true;
let equalCommits = 0;
try {
  if (range.includes("..")) {
    const commits = git("rev-list", "--reverse", "--no-merges", range).split("\n").filter(Boolean);
    const order = writeOrder(checkOut(git("rev-parse", range.split("..")[0])));
    for (const commit of commits) {
      const parent = git("rev-parse", `${commit}^`);
      const isSame = git("diff", "--name-only", parent, commit, "--", ...PARTS) === "";
      const names = isSame ? [] : await differences(checkOut(parent), checkOut(commit), order);
      if (report(git("log", "-1", "--format=%h %s", commit), names)) equalCommits += 1;
      else isEqual = false;
      rmSync(resolve(work, parent), { recursive: true, force: true });
    }
    process.stdout.write(`${equalCommits} of ${commits.length} commits are equal\n`);
  } else {
    const before = checkOut(git("rev-parse", range));
    const names = await differences(before, checkOut(undefined), writeOrder(before));
    isEqual = report(`working tree and ${range}`, names);
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}
process.exitCode = isEqual ? 0 : 1;
