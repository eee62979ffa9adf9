from __future__ import annotations
import math
from dataclasses import dataclass, field
import numpy as np
from numba import njit

RETAIN_ALL = 2**60

@dataclass(frozen=True)
class IntervalLoss:
    interval: int
    required_us: tuple
    weight: tuple
    lost: float
    cost_rate: tuple
    var: tuple=None

def make_edges(g, ratio, cells):
    e=[0,1]
    while len(e)<cells:
        e.append(max(e[-1]+1, int(e[-1]*ratio)))
    return np.array(e,dtype=np.int64)*g

@njit(cache=True)
def sweep(tail, total, limit, slack, rate, edges):
    # tail[p,k,c] weight lost on knob k at cell c ; feasible if number of p with sum > limit[p] <= slack
    P,K,C=tail.shape
    best=np.inf; bi=C-1; bj=C-1
    if K==1:
        for i in range(C):
            bad=0
            for p in range(P):
                if tail[p,0,i]>limit[p]: bad+=1
            if bad<=slack: return i,0
        return C-1,0
    j=C-1
    for i in range(C):
        # is (i,j) feasible?
        bad=0
        for p in range(P):
            if tail[p,0,i]+tail[p,1,j]>limit[p]: bad+=1
        if bad>slack: continue
        while j>0:
            bad=0
            for p in range(P):
                if tail[p,0,i]+tail[p,1,j-1]>limit[p]:
                    bad+=1
                    if bad>slack: break
            if bad>slack: break
            j-=1
        cost=edges[i]*rate[0]+edges[j]*rate[1]
        if cost<best: best=cost; bi=i; bj=j
    return bi,bj

class Calibrated:
    def __init__(s,target,period_us,interval_us,g,floor_us,share=.95,memory=None,aim='ramp',steer=True,current=True,ratio=1.02,same=False,drop=0,gamma=1.0,descend=False,z=0.):
        s.__dict__.update(locals()); del s.__dict__['s']
        s.edges=make_edges(g,ratio,1100)
        s.K=len(floor_us); s.M=memory or math.ceil(share/(1-share)-1e-9)
        s.past=[]; s.cur=None; s.period=None; s.first=None; s.log=[]
    def _new(s): return dict(h=np.zeros((s.K,s.edges.size)),v=np.zeros((s.K,s.edges.size)),lost=0.,n=0.,cost=np.zeros(s.K),k=0)
    def observe(s,il):
        p=il.interval*s.interval_us//s.period_us
        if s.first is None: s.first=il.interval
        s._roll(p)
        c=s.cur
        for k in range(s.K):
            need=np.maximum(il.required_us[k]-s.floor_us[k],0)
            cell=np.searchsorted(s.edges,need,side='left')
            if il.var is not None: np.add.at(c['v'][k],np.minimum(cell,s.edges.size-1),il.var[k])
            np.add.at(c['h'][k],np.minimum(cell,s.edges.size-1),il.weight[k]); c['n']+=float(il.weight[k].sum())
        c['lost']+=il.lost; c['cost']+=np.array(il.cost_rate); c['k']+=1
    def _roll(s,p):
        if s.period is None: s.period=p; s.cur=s._new()
        if p>s.period:
            if s.cur['n']>0: s.past.append(s.cur)
            s.past=s.past[-s.M:]
            s.period=p; s.cur=s._new()
    def choose(s,interval):
        p=interval*s.interval_us//s.period_us
        if s.first is None or interval*s.interval_us < s.first*s.interval_us+s.period_us: return (RETAIN_ALL,)*s.K
        s._roll(p)
        n=len(s.past)
        if not n: return (RETAIN_ALL,)*s.K
        B=1-s.target
        if s.aim=='ramp': a=B*min(1,(n+1)/(s.M+1))/s.gamma
        elif s.aim=='sqrt': a=B*min(1,((n+1)/(s.M+1))**.5)/s.gamma
        else: a=B/s.gamma
        hs=[q['h'] for q in s.past]; N=[q['n'] for q in s.past]; lim=[a*q['n'] for q in s.past]
        phi=(interval*s.interval_us-p*s.period_us)/s.period_us
        c=s.cur
        if c['n']>0:
            if s.steer and phi>0:
                rest=(1-phi)*np.mean(N) if s.steer=='mean' else c['n']*(1-phi)/phi
                allowed=(B*(c['n']+rest)-c['lost'])/max(rest,1e-9)
                allowed=allowed*(a/B)
                f=min(1,max(allowed/a,0.05))
                if s.descend and allowed>a: f=allowed/a
                lim=[l*f for l in lim]
            else: f=1
            if s.current:
                hs.append(c['h']); lim.append(a*f*max(c['n'],np.mean(N)*(phi if s.current=='phi' else 1)))
        h=np.array(hs); tail=h[:,:,::-1].cumsum(2)[:,:,::-1]-h
        if s.z:
            v=np.array([q['v'] for q in s.past]+([c['v']] if len(hs)>n else [])); vt=v[:,:,::-1].cumsum(2)[:,:,::-1]-v; tail=np.maximum(tail-s.z*np.sqrt(vt),0)
        rate=np.mean([q['cost']/q['k'] for q in s.past[-3:]],axis=0)
        if s.same:
            tail=tail.sum(1,keepdims=True)
        i,j=sweep(tail,0,np.array(lim)+1e-9,s.drop,rate,s.edges)
        ix=(i,i) if s.same else (i,j)
        return tuple(int(s.floor_us[k]+s.edges[ix[k]]) for k in range(s.K))
