import { describe, expect, it } from 'vitest';
import { trend, unusual } from './anomalies';

const hours = (...failed: number[]) => failed.map((n, i) => ({ at: `h${i}`, attempts: n + 5, failed: n }));

describe('what is unusual', () => {
  it('names the hour in which far more failed than in the others, and what is usual', () => {
    expect(unusual(hours(2, 3, 2, 4, 60, 3, 2))).toEqual([{ at: 'h4', failed: 60, usual: 3 }]);
  });

  it('is not what happens every day, nor a handful, nor what there is too little of to compare', () => {
    expect(unusual(hours(40, 52, 47, 60, 45, 55))).toEqual([]);
    expect(unusual(hours(0, 0, 0, 0, 9, 0))).toEqual([]);
    expect(unusual(hours(0, 0, 90))).toEqual([]);
    expect(unusual([])).toEqual([]);
  });

  it('does not count the time before anything had run', () => {
    const before = Array.from({ length: 20 }, (_, i) => ({ at: `b${i}`, attempts: 0, failed: 0 }));
    expect(unusual([...before, ...hours(50, 55, 48, 60)])).toEqual([]);
  });
});

describe('a trend', () => {
  it('is said against what was before', () => {
    expect([trend(112, 100), trend(50, 100), trend(7, 7), trend(3, 0), trend(0, 0)]).toEqual([
      '12 % more than before',
      '50 % less than before',
      'as before',
      'none before',
      'as before',
    ]);
  });
});
