// Copies the Lua scripts (src/**/*.lua) into dist/, where the compiled code loads them. Part of
// `npm run build`.

import { cpSync, readdirSync } from "node:fs";
import { join } from "node:path";

for (const name of readdirSync("src", { recursive: true, encoding: "utf8" }))
  if (name.endsWith(".lua")) cpSync(join("src", name), join("dist", name));
