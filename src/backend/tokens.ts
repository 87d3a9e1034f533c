// Signs, with the backend's key, the JWTs that clients use to log in (docs/auth.md).

import {
  constants,
  createHmac,
  createPrivateKey,
  KeyObject,
  type SignKeyObjectInput,
  sign,
} from "node:crypto";

export interface TokenClaims {
  /** User who may log in with the token. */
  readonly uid: string;
  /** Device flag: 0 app, 1 web, 2 desktop. Default: the token is valid for every flag. */
  readonly deviceFlag?: 0 | 1 | 2 | undefined;
  /** Device level: 0 secondary, 1 main. Default: the broker's `auth.jwt.deviceLevelDefault`. */
  readonly deviceLevel?: 0 | 1 | undefined;
  readonly deviceId?: string | undefined;
  /** Seconds until the token expires. Default: 600. */
  readonly expiresInS?: number | undefined;
  readonly issuer?: string | undefined;
  readonly audience?: string | undefined;
  /**
   * Further claims. `sub`, `iss`, `aud`, `iat`, `exp` and the device claims are ignored here, even
   * if the corresponding field is absent.
   */
  readonly claims?: Readonly<Record<string, unknown>> | undefined;
}

export type TokenAlgorithm =
  | `${"HS" | "RS" | "PS"}${256 | 384 | 512}`
  | "ES256"
  | "ES384"
  | "ES512"
  | "EdDSA";

export interface TokenKey {
  readonly algorithm: TokenAlgorithm;
  /**
   * For an HS algorithm, a secret of at least 32 bytes. Otherwise, a private key in PEM form. Both
   * can also be a `KeyObject`.
   */
  readonly key: string | Uint8Array | KeyObject;
  /** Key id (`kid`), if the broker has several keys. */
  readonly keyId?: string | undefined;
}

const MIN_SECRET_BYTES = 32;
const CURVES: ReadonlyMap<TokenAlgorithm, string> = new Map([
  ["ES256", "prime256v1"],
  ["ES384", "secp384r1"],
  ["ES512", "secp521r1"],
]);
const MS_PER_S = 1000;

/**
 * Returns a signed token. Throws `TypeError` if the secret is too short or the key does not fit the
 * algorithm.
 */
export function mintToken(token: TokenClaims, { algorithm, key, keyId }: TokenKey): string {
  const { uid, deviceFlag, deviceLevel, deviceId, issuer, audience, claims } = token;
  const nowS = Math.floor(Date.now() / MS_PER_S);
  const header = encode({ alg: algorithm, typ: "JWT", kid: keyId });
  const payload = encode({
    ...claims,
    ...{ sub: uid, iss: issuer, aud: audience, iat: nowS, exp: nowS + (token.expiresInS ?? 600) },
    ...{ device_flag: deviceFlag, device_level: deviceLevel, device_id: deviceId },
  });
  const text = `${header}.${payload}`;
  return `${text}.${signatureOf(algorithm, key, text).toString("base64url")}`;
}

function signatureOf(algorithm: TokenAlgorithm, key: TokenKey["key"], text: string): Buffer {
  const hash = `sha${algorithm.slice(2)}`;
  if (algorithm.startsWith("HS")) return createHmac(hash, secretOf(key)).update(text).digest();
  const privateKey = privateKeyOf(key);
  assertFits(algorithm, privateKey);
  const bytes = Buffer.from(text);
  if (algorithm === "EdDSA") return sign(null, bytes, privateKey);
  const options: SignKeyObjectInput = { key: privateKey };
  if (algorithm.startsWith("ES")) options.dsaEncoding = "ieee-p1363";
  if (algorithm.startsWith("PS")) {
    options.padding = constants.RSA_PKCS1_PSS_PADDING;
    options.saltLength = constants.RSA_PSS_SALTLEN_DIGEST;
  }
  return sign(hash, bytes, options);
}

function secretOf(key: TokenKey["key"]): Uint8Array | KeyObject {
  if (key instanceof KeyObject && key.type !== "secret")
    throw new TypeError(`A ${key.type} key cannot be used with an HS algorithm. Use a secret`);
  const secret = key instanceof KeyObject ? key : Buffer.from(key);
  const bytes = secret instanceof KeyObject ? secret.symmetricKeySize : secret.length;
  if ((bytes ?? 0) >= MIN_SECRET_BYTES) return secret;
  throw new TypeError(`The secret must have at least ${MIN_SECRET_BYTES} bytes`);
}

function privateKeyOf(key: TokenKey["key"]): KeyObject {
  return key instanceof KeyObject ? key : createPrivateKey(Buffer.from(key));
}

/**
 * Throws a `TypeError` if the key does not fit the algorithm. Node.js might sign with such a key,
 * but the broker would refuse the token.
 */
function assertFits(algorithm: TokenAlgorithm, key: KeyObject): void {
  const kind = key.asymmetricKeyType ?? key.type;
  const curve = key.asymmetricKeyDetails?.namedCurve ?? "";
  const family = algorithm.slice(0, 2);
  const isFitting =
    (kind === "rsa" && ["RS", "PS"].includes(family)) ||
    (kind === "ec" && CURVES.get(algorithm) === curve) ||
    (kind === "ed25519" && algorithm === "EdDSA");
  if (!isFitting)
    throw new TypeError(`${algorithm} cannot be used with a key of type ${kind} ${curve}`.trim());
}

function encode(value: object): string {
  return Buffer.from(JSON.stringify(value)).toString("base64url");
}
