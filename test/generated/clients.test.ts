// Runs the two most used generators, without flags, on the OpenAPI document of a running node, and
// runs an example program of docs/examples/generated with each generated client.

import { type ExecFileOptions, execFile, execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, readdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import t from "tap";
import { startBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const STORIES = join(ROOT, "docs/examples/generated");
const GENERATORS = execFileSync(join(ROOT, ".ci/generators"), ["--print"], {
  encoding: "utf8",
}).trim();
const PYTHON = join(GENERATORS, "python");
const PACKAGES = join(GENERATORS, "node_modules");

const PASSWORD = "correct horse";

/** Output of the example programs. */
const RESULT = {
  online: [0, 0],
  seq: 1,
  text: "It is sunny.",
  history: 2,
  unread: [1],
  removed: "ok",
  refused: "not_subscriber",
  role: "admin",
  migration: "migrated",
};

const execute = promisify(execFile);

/** Runs a command and returns its output. Rejects with the output if it fails. */
async function run(command: string, args: readonly string[], options: ExecFileOptions) {
  try {
    const { stdout, stderr } = await execute(...tieToParent(command, args), options);
    return `${stdout}${stderr}`;
  } catch (error) {
    const { stdout = "", stderr = "" } = error as { stdout?: string; stderr?: string };
    throw new Error(`${command} ${args.join(" ")} failed: ${stdout}${stderr}`, { cause: error });
  }
}

function skipWithout(path: string): string | false {
  return existsSync(path) ? false : ".ci/generators could not install the generator";
}

for (const dialect of ["jindou", "wukongim"]) {
  t.test(
    `in the dialect ${dialect}, openapi-typescript (run without flags) generates types that compile${dialect === "jindou" ? ", and a program that uses the types runs" : ""}`,
    { skip: skipWithout(PACKAGES) },
    async (t) => {
      const folder = await tempFolder(t);
      const { apiPort } = await startBroker(t, {
        JINDOU_ADMIN_PASSWORD: PASSWORD,
        JINDOU_API_DIALECT: dialect,
      });
      const api = `http://127.0.0.1:${apiPort}`;
      await symlink(PACKAGES, join(folder, "node_modules"));
      await writeFile(join(folder, "package.json"), '{"type":"module"}');
      const bin = (name: string) => join(PACKAGES, ".bin", name);
      const generate = ["openapi-typescript", `${api}/openapi.json`, "-o", "schema.d.ts"] as const;
      await run(bin(generate[0]), generate.slice(1), { cwd: folder });
      const isStory = dialect === "jindou";
      if (isStory) await cp(join(STORIES, "story.ts"), join(folder, "story.ts"));
      const compile = ["--strict", "--target", "es2022", "--module", "nodenext"];
      const file = isStory ? "story.ts" : "schema.d.ts";
      await run(bin("tsc"), [...compile, "--lib", "es2023,dom", file], { cwd: folder });
      if (!isStory) return;
      const output = await run(process.execPath, ["story.js", api, PASSWORD], { cwd: folder });
      t.same(JSON.parse(output), RESULT);
    },
  );

  t.test(
    `in the dialect ${dialect}, openapi-python-client (run without flags) generates a package and warns only about POST /admin/import${dialect === "jindou" ? ", and a program that uses the package runs" : ""}`,
    { skip: skipWithout(PYTHON) },
    async (t) => {
      const folder = await tempFolder(t);
      const { apiPort } = await startBroker(t, {
        JINDOU_ADMIN_PASSWORD: PASSWORD,
        JINDOU_API_DIALECT: dialect,
      });
      const api = `http://127.0.0.1:${apiPort}`;
      const env = {
        PATH: `${join(PYTHON, "bin")}:${process.env.PATH}`,
        PYTHONPATH: PYTHON,
        HOME: folder,
      };
      const generate = ["-m", "openapi_python_client", "generate", "--url", `${api}/openapi.json`];
      const printed = await run("python3", generate, { cwd: folder, env });
      // The generator does not support the content type of NDJSON.
      const warnings = printed.match(/^WARNING parsing .*$/gm) ?? [];
      t.same(warnings, [
        "WARNING parsing POST /admin/import within system. Endpoint will not be generated.",
      ]);
      const [name = ""] = await readdir(folder);
      if (dialect !== "jindou") return;
      const path = `${PYTHON}:${join(folder, name)}`;
      const story = [join(STORIES, "story.py"), api, PASSWORD];
      const output = await run("python3", story, {
        cwd: folder,
        env: { ...env, PYTHONPATH: path },
      });
      t.same(JSON.parse(output), RESULT);
    },
  );
}
