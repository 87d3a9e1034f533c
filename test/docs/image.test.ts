// Tests of the Dockerfile: hadolint, the user, the data folder and process 1. The image itself is
// not built, because the test machines have no Docker.

import { spawnSync } from "node:child_process";
import { readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import t, { type Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import { findLinter } from "../support/linters.ts";
import { ROOT, readPage } from "./pages.ts";

/** Instructions of the last stage, which becomes the image. */
const IMAGE =
  readPage("Dockerfile")
    .split(/^FROM /m)
    .at(-1) ?? "";

const hadolint = findLinter("hadolint");

t.test("hadolint accepts the Dockerfile", { skip: hadolint.skip }, async (t) => {
  const { status, stdout } = spawnSync(hadolint.path, ["Dockerfile"], {
    cwd: ROOT,
    encoding: "utf8",
  });
  t.equal(stdout, "");
  t.equal(status, 0);
});

t.test("the image names its user by a number other than 0, as runAsNonRoot requires", async (t) => {
  t.match(IMAGE, /^USER [1-9]\d*$/m);
});

t.test("user 1000 and any user of group 0 may write to the data folder", async (t) => {
  const [, owner, group, mode = ""] =
    /^RUN install -d -o (\d+) -g (\d+) -m (\d+) \/data$/m.exec(IMAGE) ?? [];
  t.equal(owner, /^USER (\d+)$/m.exec(IMAGE)?.[1], "the user of the image owns the folder");
  t.equal(group, "0");
  t.equal(Number.parseInt(mode, 8), 0o770);
});

t.test("process 1 of the image is the init process tini", async (t) => {
  const entrypoint = JSON.parse(/^ENTRYPOINT (\[.*\])$/m.exec(IMAGE)?.[1] ?? "[]");
  t.same(entrypoint, ["tini", "-s", "--", "start-jindou"]);
  t.match(IMAGE, /apt-get install -y --no-install-recommends 'tini=/);
});

/**
 * Runs the instruction that writes the script `start-jindou` with the given Node.js, and returns
 * the path of the script. Only the paths of the image are replaced.
 */
async function startScript(t: Test, node: string): Promise<string> {
  const [, instruction = ""] = /^RUN (if node --disable-sigusr1(?:.*\\\n)*.*)$/m.exec(IMAGE) ?? [];
  const folder = await tempFolder(t);
  const script = join(folder, "start-jindou");
  const command = instruction
    .replaceAll("/usr/local/bin/start-jindou", script)
    .replaceAll("/app/dist/main.js", join(ROOT, "dist/main.js"));
  symlinkSync(node, join(folder, "node"));
  const { status } = spawnSync("sh", ["-ec", command], { env: withFolder(folder) });
  t.equal(status, 0, "the instruction succeeds");
  return script;
}

const withFolder = (folder: string) => ({ PATH: `${folder}:${process.env.PATH}` });

t.test(
  "the start script of the image uses --disable-sigusr1 only if its Node.js has the option",
  async (t) => {
    const script = await startScript(t, process.execPath);
    const hasOption = spawnSync(process.execPath, ["--disable-sigusr1", "--version"]).status === 0;
    const text = readFileSync(script, "utf8");
    t.equal(text.includes(" --disable-sigusr1 "), hasOption, `Node.js ${process.version}`);
    t.ok(statSync(script).mode & 0o001, "any user may run the script");
    const { status, stdout, stderr } = spawnSync(script, ["--version"], {
      ...{ env: withFolder(dirname(script)), encoding: "utf8" },
    });
    t.equal(stderr, "");
    t.match(stdout, /^\d+\.\d+\.\d+\n$/);
    t.equal(status, 0);

    // This program stands in for a Node.js that has the option.
    const newer = join(await tempFolder(t), "node");
    writeFileSync(newer, "#!/bin/sh\n", { mode: 0o755 });
    const withOption = readFileSync(await startScript(t, newer), "utf8");
    t.match(
      withOption,
      /^exec node --initial-old-space-size=\d+ --min-semi-space-size=\d+ --disable-sigusr1 \S*\/dist\/main\.js "\$@"$/m,
    );
  },
);

t.test(
  "the image, the systemd unit and npm start give the heap the same initial size",
  async (t) => {
    const options = /\bnode .*(--initial-old-space-size=\d+ --min-semi-space-size=\d+)/;
    const sizes = ["Dockerfile", "docs/operations.md", "package.json"].map(
      (page) => options.exec(readPage(page))?.[1],
    );
    const size = "--initial-old-space-size=64 --min-semi-space-size=16";
    t.same(sizes, [size, size, size]);
  },
);

t.test(
  "the Dockerfile takes the Node.js image as an argument and supports images based on Alpine",
  async (t) => {
    const text = readPage("Dockerfile");
    const bases = [...text.matchAll(/^FROM (\S+)/gm)].map(([, base]) => base);
    t.equal(bases.length, 2);
    for (const base of bases) t.match(base, /^node:\$\{NODE\}$/);
    const [, tag = ""] = /^ARG NODE=(\S+)$/m.exec(text) ?? [];
    t.ok(readPage("docs/dependencies.md").includes(`\`node:${tag}\``), "the page names the tag");
    t.match(IMAGE, /command -v apk .* apk add --no-cache 'tini~=0\.19'/);
    t.match(text, /sha256sum -c /, "Alpine's sha256sum has no --check");
  },
);

t.test("the image has the command jindou", async (t) => {
  const text = readPage("Dockerfile");
  t.match(text, /&& chmod \+x dist\/main\.js /);
  t.match(IMAGE, /^RUN ln -s \/app\/dist\/main\.js \/usr\/local\/bin\/jindou$/m);
  t.match(readPage("src/main.ts"), /^#!\/usr\/bin\/env node\n/);
});
