// docs/dependencies.md holds: every package of the lock has its hash or stands among the
// exceptions, and the binaries of uWebSockets.js on this disk are those that the page names.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import t from "tap";
import { whyItDoesNotLoad } from "../../src/transport/library.ts";
import { readPage, section } from "./pages.ts";

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

t.test("every package of the lock has its hash", async (t) => {
  t.ok(entries.length > 100, "the lock is read");
  const rows = section(PAGE, "## Hashes of packages").matchAll(/^\| `([^`]+)` \| (\S+) \|/gm);
  const excepted = [...rows].map(([, name, version]) => `${name}@${version}`);
  const nameless = entries
    .filter(([, { integrity = "" }]) => !/^sha512-[\w+/]{86}==$/.test(integrity))
    .map(([path, { version }]) => `${path.split("node_modules/").at(-1)}@${version}`);
  t.same(nameless.sort(), excepted.sort(), "the page names the exceptions");
});

t.test("no entry of the lock names a private registry", async (t) => {
  const foreign = entries.filter(
    ([, { resolved }]) =>
      resolved !== undefined && !resolved.startsWith("https://registry.npmjs.org/"),
  );
  t.same(
    foreign.map(([path]) => path),
    [],
  );
});

t.test("versions are exact", async (t) => {
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

t.test("the binaries of uWebSockets.js are those of the page", async (t) => {
  const text = section(PAGE, "## Binaries of uWebSockets.js");
  const rows = text.matchAll(/^\| `(\S+\.node)` \| \d+ \| `([0-9a-f]{64})` \|/gm);
  const named = new Map([...rows].map(([, file = "", hash]) => [file, hash]));
  const there = readdirSync(BINARIES).filter((file) => file.endsWith(".node"));
  t.ok(there.length > 0, "there are binaries");
  for (const file of there) t.equal(sha256(new URL(file, BINARIES)), named.get(file), file);
  t.same([...named.keys()].sort(), there.sort(), "no others are named");
  const { version } = json("node_modules/uWebSockets.js/package.json");
  t.ok(text.includes(`\`uws-pack\` ${version} `), "of that version");
});

t.test("the release for Node 24 is the same one everywhere", async (t) => {
  const text = section(PAGE, "## Node 24");
  const dockerfile = readFileSync(new URL("Dockerfile", ROOT), "utf8");
  const [, release = "no release"] =
    /npm install --save-exact (uWebSockets\.js@npm:@\S+)/.exec(text) ?? [];
  t.ok(dockerfile.includes(` ${release} `), "in the Dockerfile");
  const machine = { node: "24.0.0", platform: "linux", arch: "x64" };
  const advice = whyItDoesNotLoad("", { ...machine, glibc: "2.41" });
  t.ok(advice.endsWith(` ${release}`), "in the message");
  const rows = [...text.matchAll(/^\| (\S+\.node) \| `([0-9a-f]{64})` \|/gm)];
  t.equal(rows.length, 2);
  for (const [, file = "", hash] of rows) t.ok(dockerfile.includes(`${hash} ${file}`), file);
});

t.test("the image is built with every script of its build", async (t) => {
  const files = ["Dockerfile", ".dockerignore"] as const;
  const [image, admitted] = files.map((file) =>
    readFileSync(new URL(file, ROOT), "utf8").split("\n"),
  );
  const copied = image?.filter((line) => line.startsWith("COPY .ci/"));
  const { scripts } = json("package.json");
  const needed = scripts["build:server"].match(/\.ci\/\S+/g) ?? [];
  t.ok(needed.length > 0, "the build has scripts");
  for (const script of needed) {
    const isCopied = copied?.some((line) => line.split(" ").includes(script));
    t.ok(isCopied, `${script} is copied`);
    t.ok(admitted?.includes(`!${script}`), `${script} is admitted`);
  }
});

function sha256(file: URL): string {
  return createHash("sha256").update(readFileSync(file)).digest("hex");
}
