// Puts the steps that run inside Redis (src/**/*.lua) beside the code that loads them in dist/. Part of `npm run build`.

import { cpSync, readdirSync } from "node:fs";
import { join } from "node:path";

for (const name of readdirSync("src", { recursive: true, encoding: "utf8" }))
  if (name.endsWith(".lua")) cpSync(join("src", name), join("dist", name));
