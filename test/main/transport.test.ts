// Tests of how a node chooses its transport driver on startup, as a child process.

import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { jindou, nodeSettings, spawnJindou } from "./jindou.ts";

/** Module that simulates a version of Node.js for which no binary exists. */
const NO_BINARY = `const versions = { ...process.versions, node: "99.1.0", modules: "999" };
  Object.defineProperty(process, "versions", { value: versions });`;

const FREE_ADDRESSES = {
  JINDOU_API_LISTEN: "127.0.0.1:0",
  JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
};

interface Ready {
  readonly transport: string;
  readonly library: string;
  readonly warnings: readonly string[];
  /** The lines of `jindou_transport_info`. */
  readonly metrics: readonly string[];
}

/** Starts a node, reads which driver the node uses, and stops it. */
async function ready(
  t: Test,
  env: Readonly<Record<string, string>>,
  preload?: string,
): Promise<Ready> {
  const settings = { ...(await nodeSettings(t, 1000)), ...env };
  const node = spawnJindou(t, [], {
    env: settings,
    ...(preload === undefined ? {} : { preload }),
  });
  const { apiPort, transport, library } = await node.logged("The node is ready");
  const page = await (await fetch(`http://127.0.0.1:${apiPort}/metrics`)).text();
  node.child.kill("SIGTERM");
  const { stdout } = await node.exit;
  const lines = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
  return {
    transport: String(transport),
    library: String(library),
    warnings: lines.filter(({ level }) => level === "warn" || level === 40).map(({ msg }) => msg),
    metrics: page.split("\n").filter((line) => line.startsWith("jindou_transport_info")),
  };
}

t.test("a node uses the driver that transport.driver names, and reports it", async (t) => {
  for (const driver of ["uws", "portable"]) {
    const node = await ready(t, { JINDOU_TRANSPORT_DRIVER: driver });
    t.equal(node.transport, driver);
    t.same(node.warnings, []);
    t.same(node.metrics, [`jindou_transport_info{driver="${driver}",library="${node.library}"} 1`]);
  }
});

t.test(
  "a node whose system has no binary of uWebSockets.js runs on the portable driver with one warning",
  async (t) => {
    const node = await ready(t, {}, NO_BINARY);
    t.equal(node.transport, "portable");
    t.equal(node.warnings.length, 1);
    const [warning = ""] = node.warnings;
    t.match(warning, /^uWebSockets\.js does not load in Node 99\.1\.0 on /);
    t.match(
      warning,
      /portable transport is used instead, which needs up to twice as much CPU time/,
    );
    t.notMatch(warning, "\n");
    const check = await jindou(t, ["check-config"], { env: FREE_ADDRESSES, preload: NO_BINARY });
    t.equal(check.code, 0);
    t.match(check.stderr, /^jindou: warning: uWebSockets\.js does not load .*\n$/);
  },
);

t.test(
  "with transport.driver uws, start and check-config fail with one line if uWebSockets.js does not load",
  async (t) => {
    const env = { ...FREE_ADDRESSES, JINDOU_TRANSPORT_DRIVER: "uws" };
    for (const command of ["start", "check-config"]) {
      const { code, stderr } = await jindou(t, [command], { env, preload: NO_BINARY });
      t.equal(code, 2, command);
      const [line = "", ...more] = stderr.trimEnd().split("\n");
      t.match(line, /^jindou: uWebSockets\.js does not load in Node 99\.1\.0 on /);
      t.match(line, /uws_\w+_999\.node.*\. Use Node 20/);
      t.same(more, [], "no stack trace is printed");
    }
  },
);

/**
 * Creates a small package that replaces the newest release, which is 133 MB in size. The package
 * runs `code` and has the same file names as the release. Returns the settings with which a node
 * finds the package.
 */
async function newestRelease(t: Test, code: string): Promise<Record<string, string>> {
  const modules = await mkdtemp(join(tmpdir(), "jindou-test-"));
  t.teardown(() => rm(modules, { recursive: true, force: true }));
  const name = "@btc-vision/uwebsockets.js";
  const folder = join(modules, name);
  await mkdir(folder, { recursive: true });
  const exports = { import: "./ESM_wrapper.mjs", require: "./uws.js" };
  const facts = { name, version: "99.0.0", main: "uws.js", exports };
  await writeFile(join(folder, "package.json"), JSON.stringify(facts));
  await writeFile(join(folder, "uws.js"), code);
  await writeFile(
    join(folder, "ESM_wrapper.mjs"),
    'import uws from "./uws.js"; export default uws;',
  );
  return { NODE_PATH: modules };
}

const BINARIES = fileURLToPath(
  new URL("../../node_modules/uWebSockets.js/dist/bin", import.meta.url),
);

t.test(
  "the newest release of uWebSockets.js is preferred if it is installed and loads",
  async (t) => {
    const { platform, arch, versions } = process;
    const binary = join(BINARIES, `uws_${platform}_${arch}_${versions.modules}.node`);
    const code = `module.exports = require(${JSON.stringify(binary)});`;
    const node = await ready(t, await newestRelease(t, code));
    t.match(node, { transport: "uws", library: "@btc-vision/uwebsockets.js 99.0.0", warnings: [] });
  },
);

t.test(
  "the release in the lock file is used if the newest release is installed and does not load",
  async (t) => {
    const settings = await newestRelease(t, `throw new Error("GLIBC_2.38 not found");`);
    const node = await ready(t, settings);
    t.match(node, { transport: "uws", library: /^uws-pack 20\./, warnings: [] });
  },
);
