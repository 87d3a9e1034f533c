// Tests of docs/auth.md: its commands run in a shell and print what the page says. Only the ports
// differ.

import { mkdir, symlink } from "node:fs/promises";
import { join } from "node:path";
import t from "tap";
import { tempFolder } from "../support/broker.ts";
import { freePort } from "../support/redis.ts";
import { blocks, ROOT, readPage } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const PAGE = readPage("docs/auth.md");
const LONG = { timeout: 900_000 };

t.test("the commands of docs/auth.md do what the page says", LONG, async (t) => {
  const folder = await tempFolder(t);
  const modules = join(folder, "node_modules");
  await mkdir(modules);
  for (const [from, to] of [
    ["dist", join(folder, "dist")],
    ["node_modules/jose", join(modules, "jose")],
    ["dist-backend", join(modules, "jindou-server")],
    ["dist-client", join(modules, "jindou-client")],
  ] as const)
    await symlink(join(ROOT, from), to);
  const shell = openTerminal(t, folder);
  const [api, client, hook] = [await freePort(), await freePort(), await freePort()];
  const results = new Map<string, string>();
  for (const { language, text } of blocks(PAGE)) {
    if (language !== "sh") continue;
    const block = text
      .replace(":5001", `:${api}`)
      .replace(":5200", `:${client}`)
      .replace("HOOK_PORT=7001", `HOOK_PORT=${hook}`);
    results.set(text, await shell.run(block));
  }
  const outputOf = (part: string) =>
    [...results].filter(([text]) => text.includes(part)).map(([, output]) => output);
  t.match(outputOf("/user/token"), [/\{"status":"ok"\}$/, /Your account is closed/]);
  t.match(outputOf("send.mjs"), [
    /refused_by_hook No advertising, please\s+\[ '\*{4} it', 'hello' \]/,
  ]);
  t.match(outputOf("/v1/sign"), [/hello\s+401/]);
  t.match(outputOf("watch alice"), [
    /Connected to ws:\S+ as alice/,
    /unauthorized|do not match|refused/i,
    /Connected to ws:\S+ as alice/,
    /Connected to ws:\S+ as alice/,
  ]);
});
