// Key agreement, encryption and signatures of WKProto. The weak algorithms (a key with 64 random
// bits, a constant IV, MD5) are part of the protocol. Only TLS protects a connection.

import {
  type Cipher,
  createCipheriv,
  createDecipheriv,
  createHash,
  createPublicKey,
  type Decipher,
  diffieHellman,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
} from "node:crypto";

const ALGORITHM = "aes-128-cbc";
const BLOCK_BYTES = 16;
const KEY_BYTES = 32;
const SALT_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/** Random bytes of at least this value are dropped, so that all letters are equally likely. */
const FAIR_BYTES = 248;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;
/**
 * Base point of Curve25519. The shared secret of a private key and the base point is the public key
 * [RFC 7748 6.1].
 */
const BASE_POINT = publicKeyOf(Buffer.alloc(KEY_BYTES).fill(9, 0, 1));

export interface ServerKeys {
  readonly serverKey: string;
  readonly salt: string;
}

/** Returns true if the text has the form of a public key. Does not detect low-order keys. */
export function isPublicKey(base64: string): boolean {
  if (base64.length !== 44 || !BASE64.test(base64)) return false;
  return Buffer.from(base64, "base64").length === KEY_BYTES;
}

/**
 * Returns the keys for the client, and the cipher. `clientKey` is a public key in base64. Returns
 * `undefined` if this key leads to a predictable secret. Takes almost a millisecond.
 */
export function agree(
  clientKey: string,
): { readonly keys: ServerKeys; readonly cipher: PayloadCipher } | undefined {
  const { privateKey } = generateKeyPairSync("x25519");
  const secret = secretOf(privateKey, publicKeyOf(Buffer.from(clientKey, "base64")));
  if (secret === undefined) return undefined;
  const salt = randomSalt();
  // `publicKey.export` is not used. If the garbage collector runs during that call, Node.js 20
  // waits forever for a lock that it holds itself.
  const serverKey = diffieHellman({ privateKey, publicKey: BASE_POINT }).toString("base64");
  return {
    keys: { serverKey, salt },
    cipher: new PayloadCipher(aesKeyOf(secret), salt),
  };
}

function publicKeyOf(bytes: Buffer): KeyObject {
  const key = { kty: "OKP", crv: "X25519", x: bytes.toString("base64url") };
  return createPublicKey({ key, format: "jwk" });
}

/** Returns the shared secret, or `undefined` if the public key has a low order. */
function secretOf(privateKey: KeyObject, publicKey: KeyObject): Buffer | undefined {
  try {
    const secret = diffieHellman({ privateKey, publicKey });
    return secret.every((byte) => byte === 0) ? undefined : secret;
  } catch {
    return undefined; // OpenSSL rejects a secret of zeros
  }
}

function aesKeyOf(secret: Buffer): string {
  return md5Hex(secret.toString("base64")).slice(0, BLOCK_BYTES);
}

function randomSalt(): string {
  let salt = "";
  while (salt.length < BLOCK_BYTES)
    for (const byte of randomBytes(2 * BLOCK_BYTES))
      if (byte < FAIR_BYTES && salt.length < BLOCK_BYTES)
        salt += SALT_LETTERS[byte % SALT_LETTERS.length];
  return salt;
}

function md5Hex(text: string): string {
  return createHash("md5").update(text, "latin1").digest("hex");
}

export function pad(prefix: string, text: Uint8Array): Buffer {
  const prefixBytes = Buffer.byteLength(prefix);
  const bytes = prefixBytes + text.length;
  const padding = BLOCK_BYTES - (bytes % BLOCK_BYTES);
  const padded = Buffer.allocUnsafe(bytes + padding);
  padded.write(prefix, 0);
  padded.set(text, prefixBytes);
  padded.fill(padding, bytes);
  return padded;
}

function unpad(padded: Buffer): Buffer | undefined {
  const padding = padded[padded.length - 1] ?? 0;
  if (padding === 0 || padding > BLOCK_BYTES) return undefined;
  const end = padded.length - padding;
  const isValid = padded.subarray(end).every((byte) => byte === padding);
  return isValid ? padded.subarray(0, end) : undefined;
}

interface Chain<C> {
  readonly context: C;
  readonly last: Buffer;
}

/**
 * Cipher of one connection. Every text is encrypted with the same IV, but creating an AES context
 * takes longer than an encryption. Each direction therefore has a single context, and the first
 * block is adjusted as if the chain had begun with the IV.
 */
export class PayloadCipher {
  readonly #key: Buffer;
  readonly #iv: Buffer;
  #encryption: Chain<Cipher> | undefined;
  #decryption: Chain<Decipher> | undefined;

  /** `key` and `iv` must each have 16 ASCII characters. */
  constructor(key: string, iv: string) {
    this.#key = Buffer.from(key, "latin1");
    this.#iv = Buffer.from(iv, "latin1");
  }

  /** Returns the encrypted text in base64. `padded` must come from `pad`. */
  encrypt(padded: Buffer): string {
    this.#encryption ??= {
      context: createCipheriv(ALGORITHM, this.#key, this.#iv).setAutoPadding(false),
      last: Buffer.from(this.#iv),
    };
    const { context, last } = this.#encryption;
    this.#rechain(padded, last);
    const encrypted = context.update(padded);
    this.#rechain(padded, last); // restores the caller's text
    encrypted.copy(last, 0, encrypted.length - BLOCK_BYTES);
    return encrypted.toString("base64");
  }

  decrypt(base64: Buffer): Buffer | undefined {
    const text = base64.toString("latin1");
    if (text.length % 4 !== 0 || !BASE64.test(text)) return undefined;
    const encrypted = Buffer.from(text, "base64");
    if (encrypted.length === 0 || encrypted.length % BLOCK_BYTES !== 0) return undefined;
    this.#decryption ??= {
      context: createDecipheriv(ALGORITHM, this.#key, this.#iv).setAutoPadding(false),
      last: Buffer.from(this.#iv),
    };
    const { context, last } = this.#decryption;
    const padded = context.update(encrypted);
    this.#rechain(padded, last);
    encrypted.copy(last, 0, encrypted.length - BLOCK_BYTES);
    return unpad(padded);
  }

  /** Returns the msgKey of a string. `padded` must come from `pad`. */
  sign(padded: Buffer): string {
    return md5Hex(this.encrypt(padded));
  }

  /** Converts the first block between the form chained to `last` and the form chained to the IV. */
  #rechain(blocks: Buffer, last: Buffer): void {
    for (let i = 0; i < BLOCK_BYTES; i++)
      blocks[i] = (blocks[i] ?? 0) ^ (last[i] ?? 0) ^ (this.#iv[i] ?? 0);
  }
}
