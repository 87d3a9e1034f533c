// Tests of docs/streams.md: its programs run against the node that its commands start, and print
// what the page says. Only the ports differ.

import { spawn } from "node:child_process";
import { symlink } from "node:fs/promises";
import { join } from "node:path";
import t from "tap";
import { writeModule } from "../durable-streams/packages.ts";
import { tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { freePort } from "../support/redis.ts";
import { outputOf } from "../support/run.ts";
import { blocks, ROOT, readPage } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

t.test("the code of docs/streams.md prints what the page says", async (t) => {
  const folder = await tempFolder(t);
  for (const name of ["dist", "node_modules"]) await symlink(join(ROOT, name), join(folder, name));
  const shell = openTerminal(t, folder);
  const [api, client] = [await freePort(), await freePort()];
  const examples = blocks(readPage("docs/streams.md")).map(({ language, text }) => ({
    language,
    text: text.replaceAll(":5001", `:${api}`).replaceAll(":5200", `:${client}`),
  }));
  for (const [at, { language, text }] of examples.entries()) {
    if (language === "sh") await shell.run(text);
    if (language !== "js") continue;
    const path = await writeModule(`docs-${at}.mjs`, text);
    const child = spawn(...tieToParent(process.execPath, [path]), { stdio: "pipe" });
    const { output, errors } = await outputOf(child);
    t.equal(output.trim(), examples[at + 1]?.text.trim(), errors || text);
  }
});
