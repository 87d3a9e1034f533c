// Issuers that sign client tokens with packages that are not part of Jindou (.ci/packages).

import { execFileSync } from "node:child_process";
import { createPrivateKey } from "node:crypto";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { packagesFolder } from "../support/packages.ts";

export interface SignRequest {
  readonly alg: string;
  /** Private key in PEM form, or a secret. "" for `none`. */
  readonly key: string;
  readonly claims: Readonly<Record<string, unknown>>;
  /** Members of the header besides `alg` and `typ`. */
  readonly header: Readonly<Record<string, unknown>>;
}

export interface Issuer {
  readonly name: string;
  /** Algorithms that the package supports, without `none`. */
  readonly algorithms: readonly string[];
  sign(requests: readonly SignRequest[]): Promise<readonly string[]>;
}

const FOLDER = packagesFolder("issuers");
const PYTHON = join(FOLDER, "python");
const requireFrom = createRequire(join(FOLDER, "package.json"));

const SIZES = ["256", "384", "512"];
const COMMON = ["HS", "RS", "PS", "ES"].flatMap((family) => SIZES.map((size) => family + size));

const isSymmetric = (alg: string) => alg.startsWith("HS");

const jose: Issuer = {
  name: "jose",
  algorithms: [...COMMON, "EdDSA", "Ed25519"],
  async sign(requests) {
    const { CompactSign, UnsecuredJWT } = await import(
      pathToFileURL(requireFrom.resolve("jose")).href
    );
    return Promise.all(
      requests.map(({ alg, key, claims, header }) =>
        alg === "none"
          ? new UnsecuredJWT(claims).encode()
          : new CompactSign(Buffer.from(JSON.stringify(claims)))
              .setProtectedHeader({ ...header, alg })
              .sign(isSymmetric(alg) ? Buffer.from(key) : createPrivateKey(key)),
      ),
    );
  },
};

const jsonwebtoken: Issuer = {
  name: "jsonwebtoken",
  algorithms: COMMON,
  async sign(requests) {
    const { sign } = requireFrom("jsonwebtoken");
    return requests.map(({ alg: algorithm, key, claims, header }) =>
      sign(claims, key, { algorithm, header: { ...header, alg: algorithm } }),
    );
  },
};

const pyjwt: Issuer = {
  name: "PyJWT",
  algorithms: [...COMMON, "EdDSA"],
  async sign(requests) {
    const program = fileURLToPath(new URL("sign.py", import.meta.url));
    const tokens = execFileSync("python3", ["-W", "ignore", program], {
      ...{ input: JSON.stringify(requests), encoding: "utf8" },
      env: { ...process.env, PYTHONPATH: PYTHON },
    });
    return JSON.parse(tokens);
  },
};

/** All issuers. PyJWT is missing if it could not be installed. */
export const ISSUERS: readonly Issuer[] = [
  jose,
  jsonwebtoken,
  ...(existsSync(PYTHON) ? [pyjwt] : []),
];
