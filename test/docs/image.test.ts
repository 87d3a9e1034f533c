// Tests of the Dockerfile: hadolint, the user, the data folder and process 1. The image itself is
// not built, because the test machines have no Docker.

import { spawnSync } from "node:child_process";
import t from "tap";
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

t.test(
  "process 1 of the image is an init, and SIGUSR1 does not start the debugger of Node.js",
  async (t) => {
    const entrypoint = JSON.parse(/^ENTRYPOINT (\[.*\])$/m.exec(IMAGE)?.[1] ?? "[]");
    t.same(entrypoint, ["tini", "-s", "--", "node", "--disable-sigusr1", "dist/main.js"]);
    t.match(IMAGE, /apt-get install -y --no-install-recommends 'tini=/);
  },
);

t.test("the image can be built on another Node.js, and on Alpine", async (t) => {
  const text = readPage("Dockerfile");
  const bases = [...text.matchAll(/^FROM (\S+)/gm)].map(([, base]) => base);
  t.equal(bases.length, 2);
  for (const base of bases) t.match(base, /^node:\$\{NODE\}$/);
  const [, tag = ""] = /^ARG NODE=(\S+)$/m.exec(text) ?? [];
  t.ok(readPage("docs/dependencies.md").includes(`\`node:${tag}\``), "the page names the tag");
  t.match(IMAGE, /command -v apk .* apk add --no-cache 'tini~=0\.19'/);
  t.match(text, /sha256sum -c /, "Alpine's sha256sum has no --check");
});

t.test("the image has the command jindou", async (t) => {
  const text = readPage("Dockerfile");
  t.match(text, /&& chmod \+x dist\/main\.js /);
  t.match(IMAGE, /^RUN ln -s \/app\/dist\/main\.js \/usr\/local\/bin\/jindou$/m);
  t.match(readPage("src/main.ts"), /^#!\/usr\/bin\/env node\n/);
});
