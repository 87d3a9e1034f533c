// Test of `docs/backend.md`: its program prints what the page says. It uses the built package.

import { spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import t from "tap";
import { startBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { outputOf } from "../support/run.ts";
import { blocks, ROOT, readPage } from "./pages.ts";

const SHIPPED = pathToFileURL(join(ROOT, "dist-backend/backend.js")).href;

t.test("the program in docs/backend.md prints what the page says", async (t) => {
  const { apiPort } = await startBroker(t);
  const snippets = blocks(readPage("docs/backend.md")).filter(({ language }) => language === "js");
  const program = snippets.map(({ text }) => text).join("\n");
  const path = join(await tempFolder(t), "program.mjs");
  await writeFile(
    path,
    program
      .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
      .replaceAll('"jindou-server"', JSON.stringify(SHIPPED)),
  );
  const running = spawn(...tieToParent(process.execPath, [path]), { env: {} });
  const { output, errors, exitCode } = await outputOf(running);
  t.equal(errors, "");
  t.equal(exitCode, 0);
  const expected = [...program.matchAll(/\/\/ → (.*)$/gm)].map(([, line]) => line);
  t.ok(expected.length > 4);
  t.same(output.trimEnd().split("\n"), expected);
});
