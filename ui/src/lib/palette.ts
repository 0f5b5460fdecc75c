/** How far apart two colours are for people who see colours differently: CIEDE2000 after the simulation of Machado et al. (2009). */

export type Rgb = [number, number, number];
export type Sight = 'usual' | 'protanopia' | 'deuteranopia' | 'tritanopia';

export const SIGHTS: Sight[] = ['usual', 'protanopia', 'deuteranopia', 'tritanopia'];

/** For full loss of one kind of cone, on linear light. */
const LOSS: Record<Exclude<Sight, 'usual'>, number[][]> = {
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  tritanopia: [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};

export function linear(hex: string): Rgb {
  const channel = (at: number) => {
    const c = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  return [channel(1), channel(3), channel(5)];
}

export function seen(rgb: Rgb, sight: Sight): Rgb {
  if (sight === 'usual') return rgb;
  const row = (i: number) =>
    Math.min(
      1,
      Math.max(
        0,
        (LOSS[sight][i] ?? []).reduce((sum, weight, k) => sum + weight * (rgb[k] ?? 0), 0),
      ),
    );
  return [row(0), row(1), row(2)];
}

export function contrast(a: string, b: string): number {
  const light = ([r, g, b]: Rgb) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const [one, two] = [light(linear(a)) + 0.05, light(linear(b)) + 0.05];
  return Math.max(one, two) / Math.min(one, two);
}

function lab([r, g, b]: Rgb): Rgb {
  const f = (t: number) => (t > 216 / 24_389 ? Math.cbrt(t) : ((24_389 / 27) * t + 16) / 116);
  const x = f((0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047);
  const y = f(0.2126729 * r + 0.7151522 * g + 0.072175 * b);
  const z = f((0.0193339 * r + 0.119192 * g + 0.9503041 * b) / 1.08883);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

/** CIEDE2000, as Sharma, Wu and Dalal (2005) write it down. */
export function distance(one: Rgb, two: Rgb): number {
  const rad = Math.PI / 180;
  const [L1, a1, b1] = lab(one);
  const [L2, a2, b2] = lab(two);
  const C = (Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2;
  const G = 0.5 * (1 - Math.sqrt(C ** 7 / (C ** 7 + 25 ** 7)));
  const [A1, A2] = [a1 * (1 + G), a2 * (1 + G)];
  const [C1, C2] = [Math.hypot(A1, b1), Math.hypot(A2, b2)];
  const hue = (b: number, a: number) => (a === 0 && b === 0 ? 0 : (Math.atan2(b, a) / rad + 360) % 360);
  const [h1, h2] = [hue(b1, A1), hue(b2, A2)];
  let dh = C1 * C2 === 0 ? 0 : h2 - h1;
  if (dh > 180) dh -= 360;
  else if (dh < -180) dh += 360;
  const dH = 2 * Math.sqrt(C1 * C2) * Math.sin((dh / 2) * rad);
  const L = (L1 + L2) / 2;
  const Cm = (C1 + C2) / 2;
  let h = h1 + h2;
  if (C1 * C2 !== 0) h = Math.abs(h1 - h2) <= 180 ? h / 2 : (h < 360 ? h + 360 : h - 360) / 2;
  const T =
    1 -
    0.17 * Math.cos((h - 30) * rad) +
    0.24 * Math.cos(2 * h * rad) +
    0.32 * Math.cos((3 * h + 6) * rad) -
    0.2 * Math.cos((4 * h - 63) * rad);
  const Sl = 1 + (0.015 * (L - 50) ** 2) / Math.sqrt(20 + (L - 50) ** 2);
  const Sc = 1 + 0.045 * Cm;
  const Sh = 1 + 0.015 * Cm * T;
  const Rt = -2 * Math.sqrt(Cm ** 7 / (Cm ** 7 + 25 ** 7)) * Math.sin(60 * Math.exp(-(((h - 275) / 25) ** 2)) * rad);
  const [dl, dc, dhh] = [(L2 - L1) / Sl, (C2 - C1) / Sc, dH / Sh];
  return Math.sqrt(dl ** 2 + dc ** 2 + dhh ** 2 + Rt * dc * dhh);
}
