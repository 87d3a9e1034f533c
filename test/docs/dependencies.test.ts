// Tests of `docs/dependencies.md`: every package in the lock file has a hash or is listed as an
// exception, and the installed binaries of uWebSockets.js are those that the page lists.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import t from "tap";
import { whyItDoesNotLoad } from "../../src/transport/uws/library.ts";
import { readPage, section } from "./pages.ts";

/** An entry of `package-lock.json`. */
interface Locked {
  readonly version: string;
  readonly resolved?: string;
  readonly integrity?: string;
}

const ROOT = new URL("../../", import.meta.url);
const BINARIES = new URL("node_modules/uWebSockets.js/dist/bin/", ROOT);
const PAGE = readPage("docs/dependencies.md");
const json = (path: string) => JSON.parse(readFileSync(new URL(path, ROOT), "utf8"));
const { packages } = json("package-lock.json") as {
  packages: Record<string, Locked>;
};
const entries = Object.entries(packages).filter(([path]) => path !== "");

t.test(
  "every package in the lock file has a hash, except the packages that docs/dependencies.md lists",
  async (t) => {
    t.ok(entries.length > 100, "the lock file has entries");
    const rows = section(PAGE, "## Hashes of packages").matchAll(/^\| `([^`]+)` \| (\S+) \|/gm);
    const excepted = [...rows].map(([, name, version]) => `${name}@${version}`);
    const withoutHash = entries
      .filter(([, { integrity = "" }]) => !/^sha512-[\w+/]{86}==$/.test(integrity))
      .map(([path, { version }]) => `${path.split("node_modules/").at(-1)}@${version}`);
    t.same(withoutHash.sort(), excepted.sort(), "the page lists the exceptions");
  },
);

t.test("every package in the lock file comes from the public registry", async (t) => {
  const foreign = entries.filter(
    ([, { resolved }]) =>
      resolved !== undefined && !resolved.startsWith("https://registry.npmjs.org/"),
  );
  t.same(
    foreign.map(([path]) => path),
    [],
  );
});

t.test("the versions of all dependencies are exact", async (t) => {
  const { dependencies, devDependencies } = json("package.json");
  const all: readonly string[] = Object.values({
    ...dependencies,
    ...devDependencies,
  });
  t.same(
    all.filter((version) => !/^(npm:[\w-]+@)?\d+\.\d+\.\d+$/.test(version)),
    [],
  );
});

t.test(
  "the installed binaries of uWebSockets.js have the hashes in docs/dependencies.md",
  async (t) => {
    const text = section(PAGE, "## Binaries of uWebSockets.js");
    const rows = text.matchAll(/^\| `(\S+\.node)` \| \d+ \| `([0-9a-f]{64})` \|/gm);
    const hashes = new Map([...rows].map(([, file = "", hash]) => [file, hash]));
    const installed = readdirSync(BINARIES).filter((file) => file.endsWith(".node"));
    t.ok(installed.length > 0, "binaries are installed");
    for (const file of installed) t.equal(sha256(new URL(file, BINARIES)), hashes.get(file), file);
    t.same([...hashes.keys()].sort(), installed.sort(), "the page lists no other binaries");
    const { version } = json("node_modules/uWebSockets.js/package.json");
    t.ok(
      text.includes(`\`uws-pack\` ${version} `),
      "docs/dependencies.md names the version of the binaries",
    );
  },
);

t.test(
  "docs/dependencies.md, the Dockerfile and the start error name the same release of uWebSockets.js for Node 24",
  async (t) => {
    const text = section(PAGE, "## Node 24");
    const dockerfile = readFileSync(new URL("Dockerfile", ROOT), "utf8");
    const [, release = "no release"] = /npm install --save-exact (@btc-vision\S+)/.exec(text) ?? [];
    t.ok(dockerfile.includes(`--save-exact ${release} `), "the Dockerfile installs the release");
    const machine = { node: "24.0.0", platform: "linux", arch: "x64" };
    const advice = whyItDoesNotLoad("", { ...machine, glibc: "2.41" });
    t.ok(advice.endsWith(` ${release}`), "the start error names the release");
    const rows = [...text.matchAll(/^\| (\S+\.node) \| `([0-9a-f]{64})` \|/gm)];
    t.equal(rows.length, 2);
    for (const [, file = "", hash] of rows) t.ok(dockerfile.includes(`${hash} ${file}`), file);
  },
);

t.test("the Dockerfile copies every script that its build needs", async (t) => {
  const files = ["Dockerfile", ".dockerignore"] as const;
  const [image, includedInContext] = files.map((file) =>
    readFileSync(new URL(file, ROOT), "utf8").split("\n"),
  );
  const copied = image?.filter((line) => line.startsWith("COPY .ci/"));
  const { scripts } = json("package.json");
  const programs: readonly string[] = scripts["build:server"].match(/\.ci\/\S+/g) ?? [];
  const needed = programs.flatMap((program) => [program, ...importedScripts(program)]);
  t.ok(needed.length > 0, "the build uses scripts");
  for (const script of needed) {
    const isCopied = copied?.some((line) => line.split(" ").includes(script));
    t.ok(isCopied, `the Dockerfile copies ${script}`);
    t.ok(includedInContext?.includes(`!${script}`), `.dockerignore includes ${script}`);
  }
});

/** Returns the scripts that a script in .ci imports. */
function importedScripts(program: string): readonly string[] {
  const text = readFileSync(new URL(program, ROOT), "utf8");
  return [...text.matchAll(/from "\.\/([\w-]+\.mjs)"/g)].map(([, name]) => `.ci/${name}`);
}

function sha256(file: URL): string {
  return createHash("sha256").update(readFileSync(file)).digest("hex");
}
