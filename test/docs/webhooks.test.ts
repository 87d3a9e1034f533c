// Tests of `docs/webhooks.md`: its commands print what the page says, and the receiver with Express
// receives the same events.

import { copyFile, mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import t, { type Test } from "tap";
import { startBroker, tempFolder } from "../support/broker.ts";
import { freePort } from "../support/redis.ts";
import { FOLDER } from "../webhooks/packages.ts";
import { blocks, ROOT, readPage } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const EXAMPLES = join(ROOT, "docs/examples/webhooks");

/**
 * Runs the commands of the page with a different command for the receiver. Returns the output of
 * the last command, and the output that the page shows.
 */
async function follow(t: Test, receiver: string): Promise<{ printed: string; shown: string }> {
  const { apiPort } = await startBroker(t);
  const folder = await tempFolder(t);
  await mkdir(join(folder, "docs/examples/webhooks"), { recursive: true });
  for (const name of ["receiver.py", "receiver.mjs"])
    await copyFile(join(EXAMPLES, name), join(folder, "docs/examples/webhooks", name));
  const port = String(await freePort());
  const terminal = openTerminal(t, folder);
  let printed = "";
  let shown = "";
  for (const { language, text } of blocks(readPage("docs/webhooks.md"))) {
    if (language === "text") shown = text;
    if (language !== "sh") continue;
    const local = text
      .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
      .replaceAll("8080", port)
      .replace("python3 docs/examples/webhooks/receiver.py", receiver);
    printed = await terminal.run(local);
  }
  return { printed: printed.trim(), shown: shown.trim() };
}

t.test("the receiver in Python prints the event that docs/webhooks.md shows", async (t) => {
  const { printed, shown } = await follow(t, "python3 docs/examples/webhooks/receiver.py");
  t.equal(printed, shown, "the receiver prints the event that the page shows");
});

t.test("the receiver with Express prints the event that docs/webhooks.md shows", async (t) => {
  const path = join(FOLDER, "receiver.mjs"); // beside the packages that it imports
  await copyFile(join(EXAMPLES, "receiver.mjs"), path);
  const { printed, shown } = await follow(t, `${process.execPath} ${path}`);
  t.equal(printed, shown, "the receiver prints the event that the page shows");
  t.match(
    await readFile(path, "utf8"),
    /standardwebhooks/,
    "the receiver verifies requests with a third-party library",
  );
});
